"""Looking after a store: what is in it, and whether every stored byte is what was written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag import codec
from kvpacket_rag.cap import MAX_BYTES
from kvpacket_rag.database import Database, parts, read_fact
from kvpacket_rag.errors import KVPacketError, StoreError
from kvpacket_rag.packet import Fingerprint, content_hash
from kvpacket_rag.schema import chunks, documents, fingerprints, packets
from kvpacket_rag.store import READERS, PacketStore

__all__ = ["StoreInfo", "StoredDocument", "VerifyReport", "hint", "inspect", "list_documents", "verify"]


SIDE_BY_SIDE = 32
"""Packets verified between two reports of progress: that many are in memory at a time."""


LARGE = 1 << 18
"""Bytes of a packet from which on reading and hashing side by side is faster; of small ones Python is most of the work."""


@dataclass(frozen=True)
class StoredDocument:
    """A document in the store."""

    id: str
    """The name it is updated and removed by."""
    title: str
    """What it is shown as among the sources; may be empty."""
    source: str
    """The file or address it was read from; may be empty."""
    metadata: Mapping[str, Any]
    """What the application said of it: JSON values by name."""
    characters: int
    """Length of its text."""
    chunks: int
    """Pieces it was cut into."""


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds."""

    documents: int
    """Documents."""
    chunks: int
    """Chunks of all documents, equal ones counted each time."""
    packets: int
    """Stored packets; equal chunks share one, and a chunk may have a second for the first place."""
    packet_tokens: int
    """Tokens of these packets."""
    packet_bytes: int
    """Bytes of packet files."""
    bytes_per_token: float
    """Bytes of packet files by tokens of packets; 0 where there are none."""
    database_bytes: int
    """Bytes of the database, which holds texts, vectors and metadata."""
    max_bytes: int | None
    """Most bytes packet files may take, None without a limit."""
    facts: dict[str, Any]
    """Model, embedder, chunk size, anchors."""


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


def list_documents(database: Database) -> list[StoredDocument]:
    """List the documents, by id."""
    table = documents.c
    count = sa.select(sa.func.count()).where(chunks.c.document_id == table.id).scalar_subquery()
    query = sa.select(table.name, table.title, table.source, table.metadata, table.characters, count).order_by(
        table.name
    )
    with database.reading() as connection:
        return [StoredDocument(*row) for row in connection.execute(query)]


def inspect(database: Database) -> StoreInfo:
    """Count what a store holds, in one transaction."""
    with database.reading() as connection:

        def one(query: Any) -> int:
            return int(connection.execute(query).scalar() or 0)

        tokens = one(sa.select(sa.func.sum(packets.c.tokens)))
        size = one(sa.select(sa.func.sum(packets.c.bytes)))
        return StoreInfo(
            documents=one(sa.select(sa.func.count()).select_from(documents)),
            chunks=one(sa.select(sa.func.count()).select_from(chunks)),
            packets=one(sa.select(sa.func.count()).select_from(packets)),
            packet_tokens=tokens,
            packet_bytes=size,
            bytes_per_token=size / tokens if tokens else 0.0,
            database_bytes=database.size(connection),
            max_bytes=read_fact(connection, MAX_BYTES),
            facts={key: read_fact(connection, key) for key in ("settings", "generation")},
        )


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


def hint(connection: sa.Connection, document_id: str) -> str:
    """Say which documents may be meant by an id that is not there."""
    names = list(connection.execute(sa.select(documents.c.name)).scalars())
    near = [name for name in names if document_id in name][:3] or difflib.get_close_matches(document_id, names)
    return f" Did you mean {', '.join(map(repr, near))}?" if near else " `kvpacket ls` lists the ids."
