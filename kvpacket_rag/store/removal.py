"""Removes a document from a store, with everything that only this document uses."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, NotFoundError, check_kind
from kvpacket_rag.events import DocumentRemoved, Events, PacketsHealed
from kvpacket_rag.packets.fingerprint import Fingerprint
from kvpacket_rag.store.database.database import Database, read_fact, write_fact
from kvpacket_rag.store.database.schema import chunks as chunk_table
from kvpacket_rag.store.database.schema import documents
from kvpacket_rag.store.database.schema import documents as document_table
from kvpacket_rag.store.database.schema import packets as packet_table
from kvpacket_rag.store.integrity import decode_checked, read_checked
from kvpacket_rag.store.packet_store import PacketStore

__all__ = ["delete_document", "drop_damaged", "hint", "raise_generation", "remove_document"]

logger = logging.getLogger(__name__)


def remove_document(database: Database, store: PacketStore, document_id: str, location: str) -> None:
    """Remove a document with its chunks, its vectors and the packets that no other document shares.

    Raises `NotFoundError` if no document has this id.
    """
    check_kind(document_id, str, "The id of a document")
    with database.writing() as connection:
        row = connection.execute(sa.select(documents.c.id).where(documents.c.name == document_id)).scalar()
        if row is None:
            raise NotFoundError(f"There is no document {document_id!r} in {location}.{hint(connection, document_id)}")
        files = store.delete_unused(connection, delete_document(connection, row))
        raise_generation(connection)
    store.blobs.remove(files)
    store.events.emit(DocumentRemoved(document_id))


def delete_document(connection: sa.Connection, document_id: int) -> set[str]:
    """Delete a document's row and, by cascade, its chunks.

    Return the content hashes whose packets may now be unused.
    """
    contents = set(
        connection.execute(sa.select(chunk_table.c.content).where(chunk_table.c.document_id == document_id)).scalars()
    )
    connection.execute(sa.delete(document_table).where(document_table.c.id == document_id))
    return contents


def raise_generation(connection: sa.Connection) -> None:
    """Increase the generation, so that every process updates its in-memory indexes."""
    write_fact(connection, "generation", read_fact(connection, "generation", 0) + 1)


def hint(connection: sa.Connection, document_id: str) -> str:
    """Return a sentence that suggests existing ids for an unknown one."""
    names = list(connection.execute(sa.select(documents.c.name)).scalars())
    near = [name for name in names if document_id in name][:3] or difflib.get_close_matches(document_id, names)
    return f" Did you mean {', '.join(map(repr, near))}?" if near else " `kvpacket ls` lists the ids."


def drop_damaged(database: Database, store: PacketStore, damaged: Mapping[str, Fingerprint]) -> None:
    """Delete the rows and files of damaged packets, given by key, so that they can be rebuilt, and report them.

    A packet that another process has replaced in the meantime stays. A read-only store is left as it is.
    """
    if not damaged:
        return
    for key in damaged:
        logger.warning("Packet %s is damaged. It is rebuilt from the text of its chunk.", key[:12])
    store.events.emit(PacketsHealed(len(damaged)))
    if database.read_only:
        return
    gone: list[str] = []
    with database.writing() as connection:
        rows = connection.execute(sa.select(packet_table).where(packet_table.c.key.in_(list(damaged)))).fetchall()
        for row in rows:
            if not _intact(store, row, damaged[row.key]):
                connection.execute(sa.delete(packet_table).where(packet_table.c.key == row.key))
                gone.append(row.file)
    store.blobs.remove(gone)


def _intact(store: PacketStore, row: Any, fingerprint: Fingerprint) -> bool:
    """Return whether a packet is stored as its row says."""
    try:
        data = read_checked(store.blobs, Events(), row.key, row.file, row.bytes, row.sha256)
        return data is not None and bool(decode_checked(row.key, fingerprint, data))
    except DamagedError:
        return False
