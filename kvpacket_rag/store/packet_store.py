"""Stored packets: each has a row and a file. Files are checked when they are read; damaged packets are never served.

A file is written first, under a unique name, and counts only once its row is committed. A crash leaves at most a file
without a row, which `collect_garbage` removes. Files are never changed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from kvpacket_rag.store.integrity import checksum, decode_checked, in_parallel, read_checked
from kvpacket_rag.store.ram_cache import RamCache

__all__ = ["BlobsLostError", "PacketStore", "WrittenBlob"]

DEFAULT_RAM_BYTES = 2 << 30
"""Default limit on the bytes of packets cached in memory."""


@dataclass(frozen=True, eq=False)
class WrittenBlob:
    """Description of a packet in a file that no row names yet. The packet itself is not kept in memory."""

    key: str
    content: str
    tokens: int
    fingerprint: Fingerprint
    file: str
    """Empty if the store's limit left no room for it."""
    size: int
    sha256: str


class BlobsLostError(Exception):
    """Files were removed before their rows were inserted. Only for use in this package, which writes them again."""

    def __init__(self, blobs: list[WrittenBlob]) -> None:
        super().__init__(f"{len(blobs)} written files are gone")
        self.blobs = blobs


class PacketStore:
    """Packets by key, with files in `blobs` and rows in `database`."""

    def __init__(
        self, database: Database, blobs: Blobs, *, ram_bytes: int = DEFAULT_RAM_BYTES, events: Events | None = None
    ) -> None:
        self.database, self.blobs, self.events = database, blobs, events or Events()
        self._ram = RamCache(ram_bytes)
        self.cap = Cap(database, self.events)
        self._unrecorded: dict[str, int] = {}
        """Bytes of written files that no row names yet."""

    def close(self) -> None:
        """Write the latest uses of packets to the database."""
        self.cap.note()

    # -- writing --------------------------------------------------------------------------------------------

    def write_blob(self, packet: Packet, spec: PacketSpec, *, evict: bool = True) -> tuple[WrittenBlob, bytes]:
        """Write a packet to a new file; see `write_bytes`. Return a description of the file and its bytes."""
        data = codec.encode(packet, spec.fingerprint, spec.storage)
        return self.write_bytes(packet, spec.fingerprint, data, evict=evict), data

    def write_bytes(
        self, packet: Packet, fingerprint: Fingerprint, data: bytes | bytearray, *, evict: bool = True
    ) -> WrittenBlob:
        """Write the bytes of a packet to a new file, flushed to disk. The file counts only after `insert`.

        If the store's limit is reached and `evict` is set, the least recently used packets are evicted. Without room,
        nothing is written. Raises `StorageFullError` if the disk is full; nothing is left behind then.
        """
        key = fingerprint.packet_key(packet.content)
        file = f"{key[:2]}/{key}-{secrets.token_hex(4)}.safetensors"
        # A read-only store writes nothing, like a store without room.
        read_only = self.database.read_only
        gone = None if read_only else self.cap.make_room(len(data), sum(self._unrecorded.values()), evict=evict)
        self.blobs.remove(gone or ())
        if gone is None:
            file = ""
        else:
            self.blobs.write(file, data)
            self._unrecorded[file] = len(data)
        return WrittenBlob(key, packet.content, len(packet.token_ids), fingerprint, file, len(data), checksum(data))

    def insert(self, connection: sa.Connection, blobs: Iterable[WrittenBlob], anchor: str) -> None:
        """Insert the rows of written packets, within a write transaction. The packets count from then on.

        If another process stored the same packet in the meantime, that one stays. Raises `BlobsLostError` if garbage
        collection removed files before their rows were inserted; the caller rolls back and writes them again.
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
        """Remove those of the written files that no row names.

        It queries the rows, so that the result is right even after an interruption.
        """
        written = {file for file in files if file}
        if written:
            with self.database.writing() as connection:
                for part in parts(sorted(written)):
                    query = sa.select(packets.c.file).where(packets.c.file.in_(part))
                    named = set(connection.execute(query).scalars())
                    self.blobs.remove(file for file in part if file not in named)
            for file in written:
                self._unrecorded.pop(file, None)

    def delete_unused(self, connection: sa.Connection, contents: Collection[str] | None = None) -> list[str]:
        """Delete the rows of packets that no chunk needs. Return their files, to be removed after the commit.

        contents: content hashes to which this is limited; default all.
        """
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
        """Return a packet, or None if the store has none under that key.

        Raises `DamagedError` if its file is damaged, `MismatchError` if it was made under another fingerprint.
        """
        if (packet := self._ram.get(key)) is not None:
            return packet
        data = self.fetch(key)
        return None if data is None else self._decode(key, fingerprint, data)

    def _decode(self, key: str, fingerprint: Fingerprint, data: memoryview) -> Packet:
        packet = decode_checked(key, fingerprint, data)
        self._ram.put(key, packet)
        return packet

    def get_each(self, wanted: Sequence[tuple[str, Fingerprint]]) -> list[Packet | DamagedError | None]:
        """Return several packets as `get` does, but the error in place of a damaged packet.

        Packets that are not in memory are read and checked in parallel.
        """
        began, size = time.perf_counter(), 0
        self.cap.used(key for key, _ in wanted)
        found: list[Packet | DamagedError | None] = [self._ram.get(key) for key, _ in wanted]
        missing = [number for number, packet in enumerate(found) if packet is None]
        # Decode in this thread: several threads that use torch at once would wait for each other.
        for number, data in zip(missing, self._fetched([wanted[n][0] for n in missing]), strict=True):
            if isinstance(data, DamagedError):
                found[number] = data
            elif data is not None:
                found[number] = self._decoded(*wanted[number], data)
                size += len(data)
        lacking = sum(not isinstance(packet, Packet) for packet in found)
        seconds = time.perf_counter() - began
        self.events.emit(PacketsLoaded(len(wanted) - len(missing), len(missing) - lacking, lacking, size, seconds))
        return found

    def _decoded(self, key: str, fingerprint: Fingerprint, data: memoryview) -> Packet | DamagedError:
        try:
            return self._decode(key, fingerprint, data)
        except DamagedError as error:
            self.events.emit(DamageFound(key, str(error)))
            return error

    def _fetched(self, keys: Sequence[str]) -> Iterator[memoryview | DamagedError | None]:
        """Yield the bytes of several packets, or the error in place of those that are damaged."""

        def fetch(key: str) -> memoryview | DamagedError | None:
            try:
                return self.fetch(key)
            except DamagedError as error:
                return error

        return in_parallel(fetch, keys)

    def fetch_each(self, keys: Sequence[str]) -> Iterator[memoryview | None]:
        """Yield the bytes of several packets, each as `fetch` returns them, read and checked in parallel."""
        return in_parallel(self.fetch, keys)

    def has(self, key: str) -> bool:
        """Return whether there is a packet under a key."""
        with self.database.reading() as connection:
            return connection.execute(sa.select(packets.c.key).where(packets.c.key == key)).first() is not None

    def fetch(self, key: str) -> memoryview | None:
        """Return the bytes of a packet's file, or None if the store has none.

        Raises `DamagedError` if they do not match their checksum.
        """
        with self.database.reading() as connection:
            row = connection.execute(
                sa.select(packets.c.file, packets.c.sha256, packets.c.bytes).where(packets.c.key == key)
            ).first()
        return None if row is None else self.read(key, row.file, row.bytes, row.sha256)

    def read(self, key: str, file: str, size: int, sha256: str) -> memoryview | None:
        """Read a file as its row describes it; see `integrity.read_checked`."""
        return read_checked(self.blobs, self.events, key, file, size, sha256)

    def forget(self) -> None:
        """Empty the in-memory cache. The next use reads from disk."""
        self._ram.forget()

    # -- care -----------------------------------------------------------------------------------------------

    def collect_garbage(self) -> list[str]:
        """Remove packets that no chunk needs and files that no row names. Return the removed files.

        This holds the write lock. A build that has written files but not yet committed finds them missing when it
        commits, and writes them again.
        """
        with self.database.writing() as connection:
            removed = self.delete_unused(connection)
            named = set(connection.execute(sa.select(packets.c.file)).scalars())
            orphans = [file for file in self.blobs.files() if file not in named and file not in removed]
            self.blobs.remove(orphans)
        self.blobs.remove(removed)
        return removed + orphans
