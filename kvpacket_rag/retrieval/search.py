"""Search for the chunks nearest to a vector, and for the chunks that occur in a text.

The index and the text finder are held in memory and derived from the rows of a store. This module reads the rows
through the protocol `ChunkRows`. Before each search, it updates both with the changes of all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np

from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.retrieval.embedder import Vectors
from kvpacket_rag.retrieval.filters import Filter
from kvpacket_rag.retrieval.text_finder import SHORTEST, TextFinder
from kvpacket_rag.retrieval.vector_index import VectorIndex

__all__ = ["ChunkRows", "Column", "Found", "Hit", "Search", "Snapshot"]

SPARE = 16
"""Extra chunks that are scored exactly, because the index rounds its vectors and may rank a near chunk too low."""
READ_ROWS = 2000
"""Number of rows read at a time into the index."""

Column = Literal["vector", "text"]
"""A column of the chunk rows from which an in-memory structure is derived."""


@dataclass(frozen=True)
class Hit:
    """A chunk that a search found."""

    chunk: Chunk
    score: float
    """Cosine similarity of question and chunk, from -1 to 1. Higher is nearer."""
    title: str
    source: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A chunk whose text occurs at characters [start, stop) of another text."""

    start: int
    stop: int
    chunk: Chunk


class Snapshot(Protocol):
    """One consistent view of the chunk rows."""

    def generation(self) -> int:
        """Return a number that increases with every change of the rows."""

    def after(self, row: int, column: Column, limit: int) -> Sequence[tuple[int, Any]]:
        """Return up to `limit` pairs of row id and value, for row ids above `row`, in ascending order."""

    def count(self) -> int:
        """Return the number of rows."""

    def ids(self) -> set[int]:
        """Return all row ids. The id of a deleted row is never used again."""


class ChunkRows(Protocol):
    """The chunk rows of a store, with the operations that a search needs."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a consistent view of the rows."""

    def vectors(self, ids: Sequence[int]) -> Mapping[int, bytes]:
        """Return stored vectors by row id. Unknown ids are left out."""

    def vectors_by_name(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return stored vectors by chunk id. Unknown ids are left out."""

    def by_row(self, ids: Iterable[int]) -> Mapping[int, Hit]:
        """Return chunks by row id, with score 0. Unknown ids are left out."""

    def matching(self, filter: Filter) -> Sequence[int]:
        """Return the row ids of the chunks of documents that pass a filter."""


class _Derived(Protocol):
    """An in-memory structure that is derived from a column of the chunk rows, by row id."""

    def add(self, ids: list[int], values: Any) -> None: ...
    def remove(self, ids: Iterable[int]) -> None: ...


D = TypeVar("D", bound=_Derived)


class _Follower(Generic[D]):
    """Keeps an in-memory structure up to date with the rows, whichever process changes them."""

    def __init__(self, rows: ChunkRows, column: Column, decode: Callable[[list[Any]], Any]) -> None:
        """decode: converts values of the column into the values to add. Rows with an empty value are left out."""
        self._rows, self._column, self._decode = rows, column, decode
        self._derived: D | None = None
        self._seen: set[int] = set()
        self._generation = -1
        self._lock = threading.Lock()

    def fresh(self, make: Callable[[], D]) -> D:
        """Return the structure, updated to the current rows.

        make: creates the structure if there is none yet.
        """
        with self._lock, self._rows.snapshot() as rows:
            generation = rows.generation()
            if self._derived is None:
                self._derived = make()
            if generation != self._generation:
                self._add_new(rows, self._derived)
                # Row ids are never reused, so the count shows whether any row was removed.
                if rows.count() != len(self._seen):
                    present = rows.ids()
                    self._derived.remove(self._seen - present)
                    self._seen = present
                self._generation = generation
            return self._derived

    def _add_new(self, rows: Snapshot, derived: D) -> None:
        last = max(self._seen, default=0)
        while found := rows.after(last, self._column, READ_ROWS):
            filled = [(row, value) for row, value in found if value]
            if filled:
                derived.add([row for row, _ in filled], self._decode([value for _, value in filled]))
            # Recorded only after `add`: if an interruption prevented it, the next call adds these rows.
            self._seen.update(row for row, _ in found)
            last = found[-1][0]


def _vectors(blobs: list[bytes]) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1)


class Search:
    """Searches the chunks of one store. Threads may use it at the same time."""

    def __init__(self, rows: ChunkRows) -> None:
        self._rows = rows
        self._index: _Follower[VectorIndex] = _Follower(rows, "vector", _vectors)
        self._finder: _Follower[TextFinder] = _Follower(rows, "text", list)

    def nearest(self, vector: Vectors, k: int, filter: Filter | None) -> list[Hit]:
        """Find the k chunks nearest to a unit vector among those that pass the filter, best first."""
        index = self._index.fresh(lambda: VectorIndex(len(vector)))
        among = None if filter is None else self._rows.matching(filter)
        near = [neighbour.id for neighbour in index.search(vector, k + SPARE, among=among)]
        scores = dict(self._scored(vector, near)[:k])
        hits = self._rows.by_row(scores)
        return [replace(hits[row], score=score) for row, score in scores.items() if row in hits]

    def _scored(self, vector: Vectors, ids: Sequence[int]) -> list[tuple[int, float]]:
        """Return ids with the cosine similarity of their stored vectors, highest first.

        The scores are computed from the stored vectors because the index rounds its vectors.
        """
        stored = self._rows.vectors(ids)
        scores = [(row, float(vector @ np.frombuffer(stored[row], "<f4"))) for row in ids if row in stored]
        return sorted(scores, key=lambda pair: pair[1], reverse=True)

    def find(self, text: str) -> list[Found]:
        """Find the chunks that occur word for word in a text, from left to right. They do not overlap."""
        # Short texts such as separators and tags between chunks are frequent and cannot contain a chunk.
        matches = self._finder.fresh(TextFinder).find(text) if len(text) >= SHORTEST else []
        if not matches:
            return []
        chunks = {row: hit.chunk for row, hit in self._rows.by_row(match.id for match in matches).items()}
        # Equal hashes do not prove equal texts, and a chunk may have been removed in the meantime.
        return [
            Found(match.start, match.stop, chunks[match.id])
            for match in matches
            if match.id in chunks and chunks[match.id].text == text[match.start : match.stop]
        ]

    def with_vectors(self, hits: Sequence[Hit]) -> tuple[list[Hit], list[Vectors]]:
        """Return hits with the unit vector [dimension] of each. Chunks removed in the meantime are left out."""
        stored = self._rows.vectors_by_name([hit.chunk.id for hit in hits])
        hits = [hit for hit in hits if hit.chunk.id in stored]
        return hits, [np.frombuffer(stored[hit.chunk.id], dtype="<f4") for hit in hits]
