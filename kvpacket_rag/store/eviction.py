"""The limit on the bytes of packet files in a store. The least recently used packets are evicted first.

Evicted packets are built again when they are needed. Texts, vectors and metadata always stay. The bytes in use are
summed from the rows each time; there is no running total.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import sqlalchemy as sa

from kvpacket_rag.errors import InputError, StoreError, check_kind
from kvpacket_rag.events import Events, PacketsEvicted
from kvpacket_rag.store.database.database import Database, parts, read_fact, write_fact
from kvpacket_rag.store.database.schema import packets

__all__ = ["MAX_BYTES", "Cap"]

MAX_BYTES = "max_bytes"
"""The fact that holds the limit."""
MOST_NOTED = 100_000
"""Most uses kept in memory; the oldest are dropped. Without a limit, uses are never written to the database."""
NOTE_SECONDS = 60.0
"""Seconds for which uses are gathered before they are written, so that answering rarely writes."""


class Cap:
    """Keeps the packets of a database below its limit, if it has one. Threads may use it at the same time."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database, self._events = database, events
        self._lock = threading.Lock()
        self._used: OrderedDict[str, float] = OrderedDict()
        self._noted = time.monotonic()

    def limit(self) -> int | None:
        """Return the most bytes that all packets may take together, or None. All processes see the same limit."""
        with self._database.reading() as connection:
            return _limit(connection)

    def change(self, limit: int | None) -> list[str]:
        """Set or lift the limit. Return the files of evicted packets, which the caller removes.

        Raises `InputError` for a limit below 1.
        """
        check_kind(limit, (int, type(None)), "max_bytes", "Give a number of bytes, such as 20 * 10**9.")
        if limit is not None and limit < 1:
            raise InputError(f"max_bytes must be at least 1; got {limit}. None lifts the limit.")
        with self._database.writing() as connection:
            write_fact(connection, MAX_BYTES, limit)
        return self.make_room(0) or []

    def make_room(self, size: int, unrecorded: int = 0, *, evict: bool = True) -> list[str] | None:
        """Evict packets until a file of `size` bytes may be written. Return their files, which the caller removes.

        unrecorded: bytes of files that are written already but that no row names yet. evict: whether packets may be
        evicted. Returns None if there is no room.
        """
        wanted = size + unrecorded
        with self._database.reading() as connection:
            limit = _limit(connection)
            if limit is None or _held(connection) + wanted <= limit:
                return []
        if wanted > limit or not evict:
            return None
        with self._database.writing() as connection:
            self._write_down(connection)
            files, size = _evict(connection, _held(connection) + wanted - limit)
        self._events.emit(PacketsEvicted(len(files), size))
        return files

    def used(self, keys: Iterable[str]) -> None:
        """Record that packets were used now. The uses are written to the database from time to time."""
        with self._lock:
            now = time.time()
            for key in keys:
                self._used[key] = now
                self._used.move_to_end(key)
            while len(self._used) > MOST_NOTED:
                self._used.popitem(last=False)
            if time.monotonic() - self._noted < NOTE_SECONDS:
                return
            self._noted = time.monotonic()
        self.note()

    def note(self) -> None:
        """Write the last use of packets to the database.

        If another process is writing or the store cannot be written, the uses wait for the next call.
        """
        with suppress(StoreError):
            if self._used and self.limit() is not None:
                with self._database.writing(wait=False) as connection:
                    self._write_down(connection)

    def _write_down(self, connection: sa.Connection) -> None:
        with self._lock:
            used, self._used = self._used, OrderedDict()
        for key, when in used.items():
            connection.execute(sa.update(packets).where(packets.c.key == key).values(used=when))


def _limit(connection: sa.Connection) -> int | None:
    found = read_fact(connection, MAX_BYTES)
    return None if found is None else int(found)


def _held(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.sum(packets.c.bytes))).scalar() or 0)


def _evict(connection: sa.Connection, size: int) -> tuple[list[str], int]:
    """Delete the least recently used packets, at least `size` bytes in total. Return their files and bytes."""
    gone: list[str] = []
    files: list[str] = []
    freed = 0
    for row in connection.execute(sa.select(packets.c.key, packets.c.file, packets.c.bytes).order_by(packets.c.used)):
        if freed >= size:
            break
        gone.append(row.key)
        files.append(row.file)
        freed += row.bytes
    for keys in parts(gone):
        connection.execute(sa.delete(packets).where(packets.c.key.in_(keys)))
    return files, freed
