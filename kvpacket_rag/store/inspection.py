"""Lists the documents of a store and counts what it holds."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kvpacket_rag.corpus.document import StoredDocument
from kvpacket_rag.store.database.database import Database, read_fact
from kvpacket_rag.store.database.schema import chunks, documents, packets
from kvpacket_rag.store.eviction import MAX_BYTES

__all__ = ["StoreInfo", "inspect", "list_documents"]


LONGEST_VALUE = 80
"""Most characters of a setting that are shown."""


@dataclass(frozen=True)
class StoreInfo:
    """Counts and settings of a store."""

    documents: int
    """Number of documents."""
    chunks: int
    """Number of chunks in all documents; equal chunks count each time."""
    packets: int
    """Number of stored packets. Equal chunks share one, and a chunk may have a second one for the first place."""
    packet_tokens: int
    """Tokens of these packets."""
    packet_bytes: int
    """Bytes of packet files."""
    bytes_per_token: float
    """Bytes of packet files per token; 0 without packets."""
    database_bytes: int
    """Bytes of the database, which holds texts, vectors and metadata."""
    max_bytes: int | None
    """Limit on the bytes of packet files, or None."""
    facts: dict[str, Any]
    """Model, embedder, chunk size, anchors."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Settings and counts as pairs of name and value, ready for display."""
        rows = [
            (name.replace("_", " "), textwrap.shorten(str(value), LONGEST_VALUE, placeholder=" …"))
            for name, value in (self.facts.get("settings") or {}).items()
            if value not in (None, [])
        ]
        rows += [
            ("documents", f"{self.documents:,}"),
            ("chunks", f"{self.chunks:,}"),
            ("packets", f"{self.packets:,} of {self.packet_tokens:,} tokens"),
            ("packet files", f"{self.packet_bytes / 1e6:,.1f} MB, {self.bytes_per_token / 1024:.1f} KiB per token"),
        ]
        if self.max_bytes is not None:
            rows.append(("limit", f"{self.max_bytes / 1e6:,.1f} MB of packet files"))
        return [*rows, ("database", f"{self.database_bytes / 1e6:,.1f} MB")]


def list_documents(database: Database) -> list[StoredDocument]:
    """Return the documents, sorted by id."""
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
