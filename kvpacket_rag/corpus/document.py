"""Documents, the chunks they are split into, and documents as a store lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpacket_rag.errors import InputError, check_kind, check_text
from kvpacket_rag.packets.fingerprint import canonical

__all__ = ["Chunk", "Document", "StoredDocument"]


@dataclass(frozen=True)
class Document:
    """A text the user adds."""

    text: str
    id: str = ""
    """Name within the store; default a hash of the text."""
    title: str = ""
    source: str = ""
    """Where it came from: a path or address."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values to filter by and to show; not read by the model."""
    markdown: bool = False
    """Whether headings, lists and tables of Markdown guide the splitting."""
    whole: bool = False
    """Whether the text is one chunk as it is, since somebody else has cut it already."""
    vector: tuple[float, ...] | None = None
    """Of a whole document, made elsewhere in place of the store's embedder. An empty one: searches do not find it."""

    def __post_init__(self) -> None:
        for name in ("text", "id", "title", "source"):
            check_kind(getattr(self, name), str, f"The {name} of a document")
        check_kind(self.metadata, Mapping, f"The metadata of document {self.id!r}", "Leave it out for none.")
        if not self.text.strip():
            raise InputError(
                f"Document {self.id or self.source or '(unnamed)'} has no text; expected at least one visible character."
            )
        try:
            json.dumps(dict(self.metadata), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"Metadata of document {self.id or '(unnamed)'} must be JSON values: {error}.") from error
        if self.vector is not None and not self.whole:
            raise InputError(f"Document {self.id!r} has a vector but is not whole; only a document of one chunk can.")
        for name in ("text", "id", "title", "source"):
            check_text(getattr(self, name), f"The {name} of document {self.id!r}")
        if not self.id:
            object.__setattr__(self, "id", self.content[:16])

    @property
    def content(self) -> str:
        """Hash of everything that, when changed, makes it another document."""
        values = [self.text, self.title, self.source, dict(self.metadata), self.markdown]
        if self.whole:
            values += [True, self.vector]
        return hashlib.sha256(canonical(values)).hexdigest()


@dataclass(frozen=True)
class Chunk:
    """A piece of a document, with its place in it."""

    id: str
    """Stable: depends on the document's id, the text, and how often the text came before in the document."""
    document: str
    """Id of its document."""
    ordinal: int
    """Number of the chunk within the document, from 0."""
    start: int
    stop: int
    """The chunk is characters [start, stop) of the document."""
    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    """What its packet holds: the text's tokens and the separator behind them."""
    content: str = field(repr=False)
    """Hash of the token ids; equal for equal text in any document."""

    @property
    def reference(self) -> dict[str, str]:
        """What other software may keep to name the chunk: plain JSON, believed only where the text agrees."""
        return {"id": self.id, "sha256": hashlib.sha256(self.text.encode()).hexdigest()}


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
