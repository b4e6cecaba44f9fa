"""From a question's vector to chunks: filter, nearest, rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.chunking import Chunk
from kvpacket_rag.database import Database, parts, read_fact
from kvpacket_rag.embedding import Vectors
from kvpacket_rag.index import VectorIndex
from kvpacket_rag.schema import chunks, documents

__all__ = ["Filter", "Hit", "Retrieval"]

Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Which documents to search: metadata values (a list means any of them), or a function of the metadata."""


@dataclass(frozen=True)
class Hit:
    """A chunk found by a search."""

    chunk: Chunk
    score: float
    """Cosine of question and chunk, -1 to 1, higher is nearer."""
    title: str
    source: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


def passes(filter: Filter, metadata: Mapping[str, Any]) -> bool:
    """Whether a document's metadata passes a filter."""
    if callable(filter):
        return bool(filter(metadata))
    return all(
        metadata.get(key) in ([*value] if isinstance(value, list | tuple | set) else [value])
        for key, value in filter.items()
    )


class Retrieval:
    """Searches the chunks of one database; follows changes made by any process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._index: VectorIndex | None = None
        self._generation = -1
        self._lock = threading.Lock()

    def nearest(self, vector: Vectors, k: int, filter: Filter | None) -> list[Hit]:
        """Find the k chunks nearest a unit vector among those that pass the filter, best first."""
        index = self._fresh_index(len(vector))
        among = None if filter is None else self._matching(filter)
        return self.hits({neighbour.id: neighbour.score for neighbour in index.search(vector, k, among=among)})

    def _fresh_index(self, dimension: int) -> VectorIndex:
        """The index, brought to the state of the rows if any process changed them."""
        with self._lock, self._database.reading() as connection:
            generation = read_fact(connection, "generation", 0)
            if self._index is None:
                self._index = VectorIndex(dimension)
            if generation != self._generation:
                present = set(connection.execute(sa.select(chunks.c.id)).scalars())
                self._index.remove(self._index.ids - present)
                new = sorted(present - self._index.ids)
                for part in parts(new):
                    query = sa.select(chunks.c.id, chunks.c.vector).where(chunks.c.id.in_(part))
                    rows = connection.execute(query).fetchall()
                    vectors = np.frombuffer(b"".join(row.vector for row in rows), dtype="<f4").reshape(len(rows), -1)
                    self._index.add([row.id for row in rows], vectors)
                self._generation = generation
            return self._index

    def _matching(self, filter: Filter) -> list[int]:
        """Row ids of the chunks of documents that pass a filter."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(documents.c.id, documents.c.metadata)).fetchall()
            wanted = {row.id for row in rows if passes(filter, row.metadata)}
            pairs = connection.execute(sa.select(chunks.c.id, chunks.c.document_id)).fetchall()
        return [chunk for chunk, document in pairs if document in wanted]

    def hits(self, scores: Mapping[int, float]) -> list[Hit]:
        """Chunks by row id, in the order given; ids deleted meanwhile are left out."""
        query = sa.select(
            chunks, documents.c.name.label("document"), documents.c.title, documents.c.source, documents.c.metadata
        ).join(documents, chunks.c.document_id == documents.c.id)
        with self._database.reading() as connection:
            found = (connection.execute(query.where(chunks.c.id.in_(part))) for part in parts(list(scores)))
            rows = {row.id: row for result in found for row in result}
        return [_hit(rows[i], score) for i, score in scores.items() if i in rows]

    def chunks(self, ids: Iterable[int]) -> list[Chunk]:
        """Chunks by row id."""
        return [hit.chunk for hit in self.hits(dict.fromkeys(ids, 0.0))]

    def every_chunk(self) -> list[Chunk]:
        """All chunks, by row id."""
        with self._database.reading() as connection:
            return self.chunks(list(connection.execute(sa.select(chunks.c.id).order_by(chunks.c.id)).scalars()))


def _hit(row: Any, score: float) -> Hit:
    token_ids = tuple(np.frombuffer(row.token_ids, dtype="<i4").tolist())
    chunk = Chunk(row.name, row.document, row.ordinal, row.start, row.stop, row.text, token_ids, row.content)
    return Hit(chunk, score, row.title, row.source, row.metadata)
