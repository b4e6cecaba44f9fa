"""Documents, the chunks that they are split into, and the documents that a store lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpacket_rag.corpus.metadata import json_metadata
from kvpacket_rag.errors import InputError, check_kind, check_text
from kvpacket_rag.packets.fingerprint import canonical

__all__ = ["Chunk", "Document", "StoredDocument", "check_document"]


@dataclass(frozen=True)
class Document:
    """A text that the user adds to a store."""

    text: str
    id: str = ""
    """Name within the store. The default is a hash of the document's content."""
    title: str = ""
    source: str = ""
    """Where the text came from: a path or address."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values for filtering and display. The model does not see them.

    Dates, numbers of other libraries, UUIDs, paths and sets are converted to JSON values.
    """
    markdown: bool = False
    """Whether Markdown headings, lists and tables guide the splitting."""
    whole: bool = False
    """Whether the text is kept as one chunk because other software has already split it."""
    vector: tuple[float, ...] | None = None
    """Vector of a whole document, computed elsewhere instead of by the store's embedder.

    If it is empty, searches do not find the document.
    """

    def __post_init__(self) -> None:
        for name in ("text", "id", "title", "source"):
            check_kind(getattr(self, name), str, f"The {name} of a document")
        check_kind(self.metadata, Mapping, f"The metadata of document {self.id!r}", "Leave it out for none.")
        if not self.text.strip():
            raise InputError(
                f"Document {self.id or self.source or '(unnamed)'} has no text; expected at least one visible character."
            )
        whose = f"document {self.id or '(unnamed)'}"
        object.__setattr__(self, "metadata", json_metadata(self.metadata, whose))
        if self.vector is not None and not self.whole:
            raise InputError(
                f"Document {self.id!r} has a vector but is not whole. Set whole=True, or leave the vector out."
            )
        for name in ("text", "id", "title", "source"):
            check_text(getattr(self, name), f"The {name} of document {self.id!r}")
        if not self.id:
            object.__setattr__(self, "id", self.content[:16])

    @property
    def content(self) -> str:
        """Hash of everything that counts as a change of the document."""
        values = [self.text, self.title, self.source, dict(self.metadata), self.markdown]
        if self.whole:
            values += [True, self.vector]
        return hashlib.sha256(canonical(values)).hexdigest()


@dataclass(frozen=True)
class Chunk:
    """A piece of a document, with its position in the document."""

    id: str
    """Stable id. It depends on the document's id, the text, and how often the text occurred earlier in the document."""
    document: str
    """Id of its document."""
    ordinal: int
    """Number of the chunk within the document, from 0."""
    start: int
    stop: int
    """The chunk is characters [start, stop) of the document."""
    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    """Tokens in its packet: those of the text and of the separator after it."""
    content: str = field(repr=False)
    """Hash of the token ids. It is equal for equal text in any document."""

    @property
    def reference(self) -> dict[str, str]:
        """A reference that other software can store: plain JSON. It is only accepted if the text still matches."""
        return {"id": self.id, "sha256": hashlib.sha256(self.text.encode()).hexdigest()}


@dataclass(frozen=True)
class StoredDocument:
    """A document in the store."""

    id: str
    """The id by which the document is updated and removed."""
    title: str
    """The title shown among the sources. It may be empty."""
    source: str
    """The file or address from which it was read. It may be empty."""
    metadata: Mapping[str, Any]
    """Metadata from the application: JSON values by name."""
    characters: int
    """Length of its text."""
    chunks: int
    """Number of its chunks."""


def check_document(given: object) -> None:
    """Raise `InputError` for anything but a `Document`. The message says how to convert common types."""
    do = "Make one: Document(text, id=..., metadata=...)."
    if hasattr(given, "page_content"):
        do = "Make one: Document(d.page_content, metadata=d.metadata), or add it to a langchain_kvpacket.KVPacketVectorStore."
    elif hasattr(given, "get_content"):
        do = "Make one: Document(node.get_content(), metadata=node.metadata), or add it to a llama_index_kvpacket.KVPacketVectorStore."
    check_kind(given, Document, "Each added item", do)
