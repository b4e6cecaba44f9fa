"""Tables of a store. The vector index is derived from the rows, and a blob without a row does not count."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

__all__ = ["chunks", "documents", "facts", "fingerprints", "metadata", "packets"]

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", JSON, nullable=False),
    comment="Facts about the whole store: embedder, model, chunk size, anchors, and the generation, which every change raises.",
)

documents = Table(
    "documents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(1024), nullable=False, unique=True),
    Column("title", Text, nullable=False),
    Column("source", Text, nullable=False, index=True),
    Column("content", String(64), nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("added", Float, nullable=False),
)

chunks = Table(
    "chunks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("document_id", ForeignKey("documents.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("ordinal", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("stop", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("token_ids", LargeBinary, nullable=False),
    Column("content", String(64), nullable=False, index=True),
    Column("vector", LargeBinary, nullable=False),
    UniqueConstraint("document_id", "ordinal"),
    # Row ids identify vectors in the index, so an id must not be reused for another chunk after a deletion.
    sqlite_autoincrement=True,
)

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("fields", JSON, nullable=False),
    Column("anchor", String(32), nullable=False),
)

packets = Table(
    "packets",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("content", String(64), nullable=False),
    Column("fingerprint", ForeignKey("fingerprints.digest"), nullable=False),
    Column("file", String(256), nullable=False, unique=True),
    Column("bytes", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("used", Float, nullable=False, server_default="0"),
    Index("packets_by_use", "used"),
    Index("packets_by_content", "content", "fingerprint", unique=True),
)
