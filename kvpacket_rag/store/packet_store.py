"""Packets at rest: a row and a file each. What is read is checked; what is damaged is never served.

A file is written first, under a name of its own, and counts only once its row is committed: a crash leaves at
most a file without a row, which `collect_garbage` removes. Files are never changed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.errors import DamagedError
from kvpacket_rag.events import DamageFound, Events, PacketsLoaded
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.fingerprint import Fingerprint
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.store.blobs.protocol import Blobs
from kvpacket_rag.store.database.database import Database, parts
from kvpacket_rag.store.database.schema import chunks, fingerprints, packets
from kvpacket_rag.store.eviction import Cap
from kvpacket_rag.store.ram_cache import RamCache

__all__ = ["BlobsLostError", "PacketStore", "WrittenBlob"]

DEFAULT_RAM_BYTES = 2 << 30
"""Bytes of packets kept in memory by default."""
READERS = min(4, os.cpu_count() or 1)
"""Packets read at a time for a question."""


@dataclass(frozen=True, eq=False)
class WrittenBlob:
    """What is known of a packet in a file that no row names yet; the packet itself is not kept in memory."""

    key: str
    content: str
    tokens: int
    fingerprint: Fingerprint
    file: str
    """Empty if the store's limit left no room for it."""
    size: int
    sha256: str


class BlobsLostError(Exception):
    """Files were gone before their rows were there. Never leaves this package: `Builder` writes them again."""

    def __init__(self, blobs: list[WrittenBlob]) -> None:
        super().__init__(f"{len(blobs)} written files are gone")
        self.blobs = blobs


class PacketStore:
    """Packets by key, in files among `blobs` with rows in `database`."""

    def __init__(
        self, database: Database, blobs: Blobs, *, ram_bytes: int = DEFAULT_RAM_BYTES, events: Events | None = None
    ) -> None:
        self._database, self.blobs, self.events = database, blobs, events or Events()
        self._ram = RamCache(ram_bytes)
        self.cap = Cap(database, self.events)
        self._unrecorded: dict[str, int] = {}
        """Bytes of files that are written and that no row names yet."""

    def close(self) -> None:
        """Write down what was used lately."""
        self.cap.note()

    # -- writing --------------------------------------------------------------------------------------------

    def write_blob(self, packet: Packet, spec: PacketSpec, *, evict: bool = True) -> tuple[WrittenBlob, bytes]:
        """Write a packet to a new file; see `write_bytes`. Returns what is known of it, and its bytes."""
        data = codec.encode(packet, spec.fingerprint, spec.storage)
        return self.write_bytes(packet, spec.fingerprint, data, evict=evict), data

    def write_bytes(
        self, packet: Packet, fingerprint: Fingerprint, data: bytes | bytearray, *, evict: bool = True
    ) -> WrittenBlob:
        """Write the bytes of a packet to a new file, flushed to disk. It counts only after `insert`.

        Packets unused for longest go if the store may not hold more and `evict` is set; without room nothing is written.
        Raises `StorageFullError` when the disk is full; nothing is left behind then.
        """
        key = fingerprint.packet_key(packet.content)
        file = f"{key[:2]}/{key}-{secrets.token_hex(4)}.safetensors"
        # A store that is only read keeps nothing, like one without room.
        read_only = self._database.read_only
        gone = None if read_only else self.cap.make_room(len(data), sum(self._unrecorded.values()), evict=evict)
        self.blobs.remove(gone or ())
        if gone is None:
            file = ""
        else:
            self.blobs.write(file, data)
            self._unrecorded[file] = len(data)
        digest = hashlib.sha256(data).hexdigest()
        return WrittenBlob(key, packet.content, len(packet.token_ids), fingerprint, file, len(data), digest)

    def insert(self, connection: sa.Connection, blobs: Iterable[WrittenBlob], anchor: str) -> None:
        """Make written packets count, within a write transaction.

        Where another process stored the same packet in the meantime, that one stays. Raises `BlobsLostError` for
        files that garbage collection took before their rows were there; the caller rolls back and writes them again.
        """
        lost: list[WrittenBlob] = []
        for blob in blobs:
            if not blob.file:
                continue
            digest = blob.fingerprint.digest
            if (
                connection.execute(sa.select(fingerprints.c.digest).where(fingerprints.c.digest == digest)).first()
                is None
            ):
                connection.execute(
                    sa.insert(fingerprints).values(digest=digest, fields=asdict(blob.fingerprint), anchor=anchor)
                )
            present = connection.execute(sa.select(packets.c.file).where(packets.c.key == blob.key)).scalar()
            if present == blob.file:
                continue  # inserted with an earlier document of the same text
            if present is not None:
                if self.blobs.exists(present):
                    continue
                connection.execute(sa.delete(packets).where(packets.c.key == blob.key))
            if not self.blobs.exists(blob.file):
                lost.append(blob)
                self._unrecorded.pop(blob.file, None)
                continue
            connection.execute(
                sa.insert(packets).values(
                    key=blob.key, content=blob.content, fingerprint=digest, file=blob.file, bytes=blob.size,
                    sha256=blob.sha256, tokens=blob.tokens, created=time.time(), used=time.time(),
                )
            )  # fmt: skip
        if lost:
            raise BlobsLostError(lost)

    def discard(self, files: Collection[str]) -> None:
        """Remove those of some written files that no row names; asks the rows, so that no interruption can fool it."""
        written = {file for file in files if file}
        if written:
            with self._database.writing() as connection:
                for part in parts(sorted(written)):
                    query = sa.select(packets.c.file).where(packets.c.file.in_(part))
                    named = set(connection.execute(query).scalars())
                    self.blobs.remove(file for file in part if file not in named)
            for file in written:
                self._unrecorded.pop(file, None)

    def delete_unused(self, connection: sa.Connection, contents: Collection[str] | None = None) -> list[str]:
        """Delete rows of packets that no chunk needs, among `contents` or all; returns their files, to unlink after the commit."""
        unused = sa.select(packets.c.key, packets.c.file).where(
            ~sa.exists().where(chunks.c.content == packets.c.content)
        )
        files: list[str] = []
        for part in [None] if contents is None else parts(sorted(contents)):
            rows = connection.execute(unused if part is None else unused.where(packets.c.content.in_(part))).fetchall()
            for keys in parts([row.key for row in rows]):
                connection.execute(sa.delete(packets).where(packets.c.key.in_(keys)))
            self._ram.forget(row.key for row in rows)
            files += [row.file for row in rows]
        return files

    # -- reading --------------------------------------------------------------------------------------------

    def get(self, key: str, fingerprint: Fingerprint) -> Packet | None:
        """Give a packet, or None if the store has none under that key.

        Raises `DamagedError` if its file does not hold what was written, `MismatchError` if it was made under
        another fingerprint.
        """
        if (packet := self._ram.get(key)) is not None:
            return packet
        data = self.fetch(key)
        return None if data is None else self._decode(key, fingerprint, data)

    def _decode(self, key: str, fingerprint: Fingerprint, data: memoryview) -> Packet:
        packet = codec.decode(data, fingerprint, key[:12])
        if fingerprint.packet_key(packet.content) != key:
            raise DamagedError(f"The file of packet {key[:12]} holds another packet. Run `kvpacket verify --repair`.")
        self._ram.put(key, packet)
        return packet

    def get_each(self, wanted: Sequence[tuple[str, Fingerprint]]) -> list[Packet | None]:
        """Give several packets, each as `get` gives it; those that are not in memory are read and checked side by side."""
        began, size = time.perf_counter(), 0
        self.cap.used(key for key, _ in wanted)
        found = [self._ram.get(key) for key, _ in wanted]
        missing = [number for number, packet in enumerate(found) if packet is None]
        # Decoding stays here: several threads that use torch at once would wait for each other.
        for number, data in zip(missing, self.fetch_each([wanted[n][0] for n in missing]), strict=True):
            if data is not None:
                found[number] = self._decode(*wanted[number], data)
                size += len(data)
        lacking = found.count(None)
        seconds = time.perf_counter() - began
        self.events.emit(PacketsLoaded(len(wanted) - len(missing), len(missing) - lacking, lacking, size, seconds))
        return found

    def fetch_each(self, keys: Sequence[str]) -> Iterator[memoryview | None]:
        """Several packets' bytes, each as `fetch` gives them, read and checked side by side."""
        if len(keys) < 2:
            yield from map(self.fetch, keys)
            return
        with ThreadPoolExecutor(min(READERS, len(keys))) as pool:
            yield from pool.map(self.fetch, keys)

    def has(self, key: str) -> bool:
        """Whether there is a packet under a key."""
        with self._database.reading() as connection:
            return connection.execute(sa.select(packets.c.key).where(packets.c.key == key)).first() is not None

    def fetch(self, key: str) -> memoryview | None:
        """Bytes of a packet's file, or None if the store has none; raises `DamagedError` if they are not what was written."""
        with self._database.reading() as connection:
            row = connection.execute(
                sa.select(packets.c.file, packets.c.sha256, packets.c.bytes).where(packets.c.key == key)
            ).first()
        return None if row is None else self.read(key, row.file, row.bytes, row.sha256)

    def read(self, key: str, file: str, size: int, sha256: str) -> memoryview | None:
        """Bytes of a file as its row says, or None if it is gone; raises `DamagedError` if they are not what was written."""
        try:
            data = self.blobs.read(file, size)
        except DamagedError as error:
            self.events.emit(DamageFound(key, str(error)))
            raise
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            if self.blobs.drop_copy(file):
                return self.read(key, file, size, sha256)
            self.events.emit(DamageFound(key, "digest differs"))
            raise DamagedError(
                f"The file of packet {key[:12]} ({file}) is not what was written. Run `kvpacket verify --repair`."
            )
        return data

    def forget(self) -> None:
        """Empty the RAM tier; the next use reads from disk."""
        self._ram.forget()

    # -- care -----------------------------------------------------------------------------------------------

    def collect_garbage(self) -> list[str]:
        """Remove packets no chunk needs and files no row names; returns the removed files.

        Runs under the write lock: a build that has written files but not yet committed finds them missing when it
        commits, and writes them again.
        """
        with self._database.writing() as connection:
            removed = self.delete_unused(connection)
            named = set(connection.execute(sa.select(packets.c.file)).scalars())
            orphans = [file for file in self.blobs.files() if file not in named and file not in removed]
            self.blobs.remove(orphans)
        self.blobs.remove(removed)
        return removed + orphans
