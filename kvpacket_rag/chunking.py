"""Documents and the pieces of them that are retrieved.

Pieces end at the largest natural border (section, paragraph, sentence, word) that keeps them within a number of
tokens of the generator's own tokenizer. A word is never cut unless it alone is longer than a chunk.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvpacket_rag.errors import InputError, check_kind, check_text
from kvpacket_rag.packet import canonical, content_hash

if TYPE_CHECKING:
    from kvpacket_rag.model import PacketModel
    from kvpacket_rag.model.chat import TextCodec

__all__ = ["DEFAULT_CHUNK_TOKENS", "Chunk", "Document", "Splitter", "chunk_tokens"]

DEFAULT_CHUNK_TOKENS = 256
MIN_CHUNK_TOKENS = 8


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


def chunk_tokens(codec: TextCodec, text: str) -> tuple[int, ...]:
    """What the packet of a chunk of this text holds: its tokens and the separator behind them."""
    return codec.plain(text) + codec.separator


class Splitter:
    """Splits documents by tokens of one model's tokenizer."""

    def __init__(self, model: PacketModel, chunk_tokens: int = DEFAULT_CHUNK_TOKENS) -> None:
        from semantic_text_splitter import MarkdownSplitter, TextSplitter

        self.chunk_tokens = chunk_tokens
        self._text = model.text
        counter = model.text.counter
        self._plain, self._markdown = (
            kind.from_huggingface_tokenizer(counter, chunk_tokens) for kind in (TextSplitter, MarkdownSplitter)
        )

    def split(self, document: Document) -> list[Chunk]:
        """Cut a document into chunks. The same document always gives the same chunks with the same ids."""
        splitter = self._markdown if document.markdown else self._plain
        pieces = [(0, document.text)] if document.whole else splitter.chunk_indices(document.text)
        chunks: list[Chunk] = []
        seen: Counter[str] = Counter()
        for start, text in pieces:
            token_ids = chunk_tokens(self._text, text)
            content = content_hash(token_ids)
            name = hashlib.sha256(canonical([document.id, content, seen[content]])).hexdigest()[:20]
            seen[content] += 1
            chunks.append(Chunk(name, document.id, len(chunks), start, start + len(text), text, token_ids, content))
        return chunks
