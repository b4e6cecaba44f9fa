"""Taking a document out of a store, with what is its alone."""

from __future__ import annotations

import sqlalchemy as sa

from kvpacket_rag.building import delete_document, raise_generation
from kvpacket_rag.database import Database
from kvpacket_rag.errors import NotFoundError, check_kind
from kvpacket_rag.events import DocumentRemoved
from kvpacket_rag.inspection import hint
from kvpacket_rag.schema import documents
from kvpacket_rag.store import PacketStore

__all__ = ["remove_document"]


def remove_document(database: Database, store: PacketStore, document_id: str, location: str) -> None:
    """Remove a document with its chunks, vectors and the packets no other document shares.

    Raises `NotFoundError` if there is none of that id.
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
