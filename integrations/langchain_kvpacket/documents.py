"""Convert chunks to LangChain documents and back."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document

from kvpacket_rag import Hit

__all__ = ["WHOLE", "chunk_id", "to_document"]

WHOLE = "langchain_kvpacket"
"""Source of documents that were added through LangChain. Each is one chunk and keeps its id from LangChain."""


def to_document(hit: Hit, *, named: bool) -> Document:
    """Return a chunk as a document. named: add title, source and a reference to the packet to its metadata."""
    whole = hit.source == WHOLE
    metadata: dict[str, Any] = dict(hit.metadata)
    if named:
        if not whole:
            metadata = {"title": hit.title, "source": hit.source, **metadata}
        metadata["kvpacket"] = hit.chunk.reference
    return Document(hit.chunk.text, metadata=metadata, id=hit.chunk.document if whole else hit.chunk.id)


def chunk_id(document: Document) -> str:
    """Return the id of the chunk that a document refers to, or ""."""
    named = document.metadata.get("kvpacket")
    return str(named.get("id", "")) if isinstance(named, dict) else document.id or ""
