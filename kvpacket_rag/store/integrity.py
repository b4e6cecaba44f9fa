"""Checksums: whether every stored byte is what was written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.errors import KVPacketError, StoreError
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.fingerprint import Fingerprint, content_hash
from kvpacket_rag.store.database.database import Database, parts, read_fact
from kvpacket_rag.store.database.schema import chunks, fingerprints, packets
from kvpacket_rag.store.packet_store import READERS, PacketStore

__all__ = ["VerifyReport", "verify"]


SIDE_BY_SIDE = 32
"""Packets verified between two reports of progress: that many are in memory at a time."""


LARGE = 1 << 18
"""Bytes of a packet from which on reading and hashing side by side is faster; of small ones Python is most of the work."""


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found."""

    packets: int
    """Packets checked."""
    damaged: tuple[tuple[str, str], ...]
    """(packet key, what is wrong): never served, rebuilt by repair."""
    orphans: tuple[str, ...]
    """Files no row names; harmless, removed by garbage collection."""
    without_packet: int
    """Chunks whose packet is not stored; it is built when first used."""
    database: tuple[str, ...]
    """What the database says of itself."""
    repaired: int = 0
    """Packets rebuilt or dropped."""

    @property
    def clean(self) -> bool:
        """Whether everything stored is as it was written and nothing is left over."""
        return not (self.damaged or self.orphans or self.database)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**asdict(self), "clean": self.clean}


def verify(database: Database, store: PacketStore, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check every packet file against its row, every row against its file, and the database against itself.

    progress: called with (packets checked, packets).
    """
    if wrong := database.check():
        return VerifyReport(0, (), (), 0, tuple(wrong))
    with database.reading() as connection:
        rows = connection.execute(sa.select(packets)).fetchall()
        known = {row.digest: Fingerprint(**row.fields) for row in connection.execute(sa.select(fingerprints))}
        packed = sa.exists().where(packets.c.content == chunks.c.content)
        if (made := read_fact(connection, "fingerprint")) is not None:  # as packets of later places are made now
            packed = packed.where(packets.c.fingerprint == Fingerprint(**made).digest)
        without = connection.execute(sa.select(sa.func.count()).select_from(chunks).where(~packed)).scalar() or 0
    report = progress or (lambda *_: None)
    report(0, len(rows))
    damaged = []
    large = sum(row.bytes for row in rows) >= LARGE * len(rows)
    with ThreadPoolExecutor(READERS if large else 1) as pool:
        for number, part in enumerate(parts(rows, SIDE_BY_SIDE)):
            faults = pool.map(lambda row: _fault(store, row, known[row.fingerprint]), part)
            for row, fault in zip(part, faults, strict=True):
                if fault is not None and _still_there(database, row):
                    damaged.append((row.key, fault))
            report(number * SIDE_BY_SIDE + len(part), len(rows))
    found = store.blobs.files()
    named = {row.file for row in rows}
    with database.reading() as connection:  # files of documents added meanwhile are no orphans
        named |= set(connection.execute(sa.select(packets.c.file)).scalars())
    orphans = tuple(file for file in found if file not in named)
    return VerifyReport(len(rows), tuple(damaged), orphans, int(without), tuple(_damaged_chunks(database)))


def _fault(store: PacketStore, row: Any, fingerprint: Fingerprint) -> str | None:
    store.blobs.drop_copy(row.file)  # what lies where packets lie, not a copy of it
    try:
        data = store.read(row.key, row.file, row.bytes, row.sha256)
    except StoreError as error:
        return str(error)
    if data is None:
        return "the file is missing"
    if fingerprint.digest != row.fingerprint:
        return "the recorded fingerprint does not give its digest"
    try:
        packet = codec.decode(data, fingerprint, row.key[:12])
    except KVPacketError as error:
        return str(error)
    if packet.content != row.content or fingerprint.packet_key(packet.content) != row.key:
        return "the file holds another packet"
    return None


def _still_there(database: Database, row: Any) -> bool:
    """Whether a row is as it was; another process may have removed or replaced the packet meanwhile."""
    with database.reading() as connection:
        query = sa.select(packets.c.key).where(packets.c.key == row.key, packets.c.file == row.file)
        return connection.execute(query).first() is not None


def _damaged_chunks(database: Database) -> list[str]:
    """Chunks whose tokens or vector are not what was written."""
    found = []
    with database.reading() as connection:
        lengths = set()  # none of chunks that searches do not find
        for row in connection.execute(sa.select(chunks.c.name, chunks.c.token_ids, chunks.c.content, chunks.c.vector)):
            lengths.add(len(row.vector))
            if (
                len(row.token_ids) % 4
                or content_hash(tuple(np.frombuffer(row.token_ids, "<i4").tolist())) != row.content
            ):
                found.append(f"the tokens of chunk {row.name} are not what was written")
    return found if len(lengths - {0}) <= 1 else [*found, "vectors of different lengths"]
