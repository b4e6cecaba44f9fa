"""The most bytes of packet files a store may hold. What was unused for longest goes first, to be built again when needed.

Texts, vectors and metadata always stay. What is held is summed from the rows each time, and never counted along.
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
"""Uses kept in memory at most, the last ones: where no limit is set they are never written down."""
NOTE_SECONDS = 60.0
"""How long uses are gathered before they are written down, so that answering hardly ever writes."""


class Cap:
    """Keeps the packets of a database below its limit, if it has one. Threads may use it at the same time."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database, self._events = database, events
        self._lock = threading.Lock()
        self._used: OrderedDict[str, float] = OrderedDict()
        self._noted = time.monotonic()

    def limit(self) -> int | None:
        """Bytes the packets may take together, None without a limit; all processes see the same."""
        with self._database.reading() as connection:
            return _limit(connection)

    def change(self, limit: int | None) -> list[str]:
        """Set or lift the limit; returns the files of packets that had to go, to be removed.

        Raises `InputError` for a limit below 1.
        """
        check_kind(limit, (int, type(None)), "max_bytes", "Give a number of bytes, such as 20 * 10**9.")
        if limit is not None and limit < 1:
            raise InputError(f"max_bytes must be at least 1; got {limit}. None lifts the limit.")
        with self._database.writing() as connection:
            write_fact(connection, MAX_BYTES, limit)
        return self.make_room(0) or []

    def make_room(self, size: int, unrecorded: int = 0, *, evict: bool = True) -> list[str] | None:
        """Delete packets until a file of `size` bytes may be written; returns their files, to be removed.

        unrecorded: bytes of files that are written already but that no row names yet. evict: whether others may go. None:
        there is no room.
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
        """Note that packets were used now; written down once in a while."""
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
        """Write down what was used; left for the next time where another process is writing or the store cannot be written."""
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
    """Delete the packets unused for longest, of at least `size` bytes together; gives their files and bytes."""
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
