"""Splitting of documents into chunks, the pieces that are retrieved.

A chunk ends at the largest natural border (section, paragraph, sentence, word) that keeps it within a number of tokens
of the generator's own tokenizer. A word is split only if it alone is longer than a chunk.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from kvpacket_rag.corpus.document import Chunk, Document
from kvpacket_rag.packets.fingerprint import canonical, content_hash

if TYPE_CHECKING:
    from kvpacket_rag.engine.chat import TextCodec
    from kvpacket_rag.engine.protocol import Engine

__all__ = ["DEFAULT_CHUNK_TOKENS", "MIN_CHUNK_TOKENS", "Splitter", "chunk_tokens"]

DEFAULT_CHUNK_TOKENS = 256
MIN_CHUNK_TOKENS = 8


def chunk_tokens(codec: TextCodec, text: str) -> tuple[int, ...]:
    """Return the tokens in the packet of a chunk with this text: those of the text and of the separator after it."""
    return codec.plain(text) + codec.separator


class Splitter:
    """Splits documents into chunks. Lengths are counted in tokens of one model's tokenizer."""

    def __init__(self, model: Engine, chunk_tokens: int = DEFAULT_CHUNK_TOKENS) -> None:
        from semantic_text_splitter import MarkdownSplitter, TextSplitter

        self.chunk_tokens = chunk_tokens
        self._text = model.text
        counter = model.text.counter
        self._plain, self._markdown = (
            kind.from_huggingface_tokenizer(counter, chunk_tokens) for kind in (TextSplitter, MarkdownSplitter)
        )

    def split(self, document: Document) -> list[Chunk]:
        """Split a document into chunks. The same document always results in the same chunks with the same ids."""
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
