"""Integrity of a store: every read compares a packet with its checksum, and `verify` checks everything that is stored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, KVPacketError, StoreError
from kvpacket_rag.events import DamageFound, Events
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.fingerprint import Fingerprint, content_hash
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.store.blobs.protocol import Blobs
from kvpacket_rag.store.database.database import Database, parts, read_fact
from kvpacket_rag.store.database.schema import chunks, fingerprints, packets

__all__ = ["READERS", "VerifyReport", "checksum", "decode_checked", "in_parallel", "read_checked", "verify"]

A = TypeVar("A")
B = TypeVar("B")
READERS = min(4, os.cpu_count() or 1)
"""Packets read in parallel."""


SIDE_BY_SIDE = 32
"""Packets verified between two progress reports. This many are in memory at a time."""


LARGE = 1 << 18
"""Average bytes of a packet from which parallel reading and hashing is faster. For smaller packets, Python itself takes
most of the time."""


def checksum(data: bytes | bytearray | memoryview) -> str:
    """Return the sha256 of the bytes of a packet, as its row records it."""
    return hashlib.sha256(data).hexdigest()


def read_checked(blobs: Blobs, events: Events, key: str, file: str, size: int, sha256: str) -> memoryview | None:
    """Read the file of a packet and compare it with the length and checksum in its row.

    A damaged copy of a remote file is fetched again. Returns None if the file is gone. Raises `DamagedError` if the file
    does not match, and emits `DamageFound`.
    """
    try:
        data = blobs.read(file, size)
    except DamagedError as error:
        events.emit(DamageFound(key, str(error)))
        raise
    if data is not None and checksum(data) != sha256:
        if blobs.drop_copy(file):
            return read_checked(blobs, events, key, file, size, sha256)
        events.emit(DamageFound(key, "checksum differs"))
        raise DamagedError(
            f"The file of packet {key[:12]} ({file}) does not match its checksum. Run `kvpacket verify --repair`."
        )
    return data


def decode_checked(key: str, fingerprint: Fingerprint, data: memoryview) -> Packet:
    """Decode a packet. Raises `DamagedError` if the bytes are not this packet, `MismatchError` for another fingerprint."""
    packet = codec.decode(data, fingerprint, key[:12])
    if fingerprint.packet_key(packet.content) != key:
        raise DamagedError(f"The file of packet {key[:12]} holds another packet. Run `kvpacket verify --repair`.")
    return packet


def in_parallel(work: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """Yield the results of some work on items, in order, computed in up to `READERS` threads."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(READERS, len(items))) as pool:
        yield from pool.map(work, items)


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`."""

    packets: int
    """Number of packets checked."""
    damaged: tuple[tuple[str, str], ...]
    """Pairs of packet key and fault. Damaged packets are never served, and a repair rebuilds them."""
    orphans: tuple[str, ...]
    """Files that no row names. They are harmless, and garbage collection removes them."""
    without_packet: int
    """Number of chunks whose packet is not stored. It is built on first use."""
    database: tuple[str, ...]
    """Faults found in the database itself."""
    repaired: int = 0
    """Number of packets rebuilt or dropped."""

    @property
    def clean(self) -> bool:
        """Whether everything stored is intact and nothing is left over."""
        return not (self.damaged or self.orphans or self.database)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "clean": self.clean}


def verify(
    database: Database, blobs: Blobs, events: Events, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Check every packet file against its row, every row against its file, and the database itself.

    progress: called with (packets checked, packets in total).
    """
    if wrong := database.check():
        return VerifyReport(0, (), (), 0, tuple(wrong))
    with database.reading() as connection:
        rows = connection.execute(sa.select(packets)).fetchall()
        known = {row.digest: Fingerprint(**row.fields) for row in connection.execute(sa.select(fingerprints))}
        packed = sa.exists().where(packets.c.content == chunks.c.content)
        if (made := read_fact(connection, "fingerprint")) is not None:  # count only the current kind, for later places
            packed = packed.where(packets.c.fingerprint == Fingerprint(**made).digest)
        without = connection.execute(sa.select(sa.func.count()).select_from(chunks).where(~packed)).scalar() or 0
    report = progress or (lambda *_: None)
    report(0, len(rows))
    damaged = []
    large = sum(row.bytes for row in rows) >= LARGE * len(rows)
    with ThreadPoolExecutor(READERS if large else 1) as pool:
        for number, part in enumerate(parts(rows, SIDE_BY_SIDE)):
            faults = pool.map(lambda row: _fault(blobs, events, row, known[row.fingerprint]), part)
            for row, fault in zip(part, faults, strict=True):
                if fault is not None and _still_there(database, row):
                    damaged.append((row.key, fault))
            report(number * SIDE_BY_SIDE + len(part), len(rows))
    found = blobs.files()
    named = {row.file for row in rows}
    with database.reading() as connection:  # files of documents added meanwhile are not orphans
        named |= set(connection.execute(sa.select(packets.c.file)).scalars())
    orphans = tuple(file for file in found if file not in named)
    return VerifyReport(len(rows), tuple(damaged), orphans, int(without), tuple(_damaged_chunks(database)))


def _fault(blobs: Blobs, events: Events, row: Any, fingerprint: Fingerprint) -> str | None:
    blobs.drop_copy(row.file)  # check the stored file, not a cached copy
    try:
        data = read_checked(blobs, events, row.key, row.file, row.bytes, row.sha256)
    except StoreError as error:
        return str(error)
    if data is None:
        return "the file is missing"
    if fingerprint.digest != row.fingerprint:
        return "the recorded fingerprint does not match its digest"
    try:
        packet = codec.decode(data, fingerprint, row.key[:12])
    except KVPacketError as error:
        return str(error)
    if packet.content != row.content or fingerprint.packet_key(packet.content) != row.key:
        return "the file holds another packet"
    return None


def _still_there(database: Database, row: Any) -> bool:
    """Return whether a row is unchanged. Another process may have removed or replaced the packet meanwhile."""
    with database.reading() as connection:
        query = sa.select(packets.c.key).where(packets.c.key == row.key, packets.c.file == row.file)
        return connection.execute(query).first() is not None


def _damaged_chunks(database: Database) -> list[str]:
    """Return the faults of chunks: tokens that do not match their hash, and vectors of different lengths."""
    found = []
    with database.reading() as connection:
        lengths = set()  # a chunk that searches must not find has a vector of length 0
        for row in connection.execute(sa.select(chunks.c.name, chunks.c.token_ids, chunks.c.content, chunks.c.vector)):
            lengths.add(len(row.vector))
            if (
                len(row.token_ids) % 4
                or content_hash(tuple(np.frombuffer(row.token_ids, "<i4").tolist())) != row.content
            ):
                found.append(f"the tokens of chunk {row.name} do not match their hash")
    return found if len(lengths - {0}) <= 1 else [*found, "vectors of different lengths"]
