"""From a question's vector, a text or an id to chunks: filter, nearest, rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.chunking import Chunk
from kvpacket_rag.database import Database, parts, read_fact
from kvpacket_rag.embedding import Vectors
from kvpacket_rag.errors import check_kind
from kvpacket_rag.finding import SHORTEST, TextFinder
from kvpacket_rag.index import VectorIndex
from kvpacket_rag.schema import chunks, documents

__all__ = ["Filter", "Found", "Hit", "Retrieval"]

CHUNK_COLUMNS = [column for column in chunks.c if column.name != "vector"]
DOCUMENT_COLUMNS = [
    documents.c.name.label("document"), documents.c.title, documents.c.source, documents.c.metadata
]  # fmt: skip
SPARE = 16
"""Chunks scored exactly beyond those wanted, among which near ones may be that the index took for farther."""
READ_ROWS = 2000
"""Rows read at a time into what is derived from them."""

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


@dataclass(frozen=True)
class Found:
    """A chunk whose text stands at characters [start, stop) of another text."""

    start: int
    stop: int
    chunk: Chunk


class _Derived(Protocol):
    """Something in memory that is made from a column of the chunk rows, by row id."""

    def add(self, ids: list[int], values: Any) -> None: ...
    def remove(self, ids: Iterable[int]) -> None: ...


D = TypeVar("D", bound=_Derived)


class _Follower(Generic[D]):
    """Keeps what is derived from rows at the state of the rows, whichever process changes them."""

    def __init__(self, database: Database, column: sa.Column[Any], decode: Callable[[list[Any]], Any]) -> None:
        """decode: makes values of those of the column; rows whose value is empty are left out."""
        self._database, self._column, self._decode = database, column, decode
        self._derived: D | None = None
        self._seen: set[int] = set()
        self._generation = -1
        self._lock = threading.Lock()

    def fresh(self, make: Callable[[], D]) -> D:
        """Give it as the rows are now, made if there is none yet."""
        with self._lock, self._database.reading() as connection:
            generation = read_fact(connection, "generation", 0)
            if self._derived is None:
                self._derived = make()
            if generation != self._generation:
                self._add_new(connection, self._derived)
                # Row ids never come back, so that a count tells whether any was removed.
                count = connection.execute(sa.select(sa.func.count()).select_from(chunks)).scalar_one()
                if count != len(self._seen):
                    present = set(connection.execute(sa.select(chunks.c.id)).scalars())
                    self._derived.remove(self._seen - present)
                    self._seen = present
                self._generation = generation
            return self._derived

    def _add_new(self, connection: sa.Connection, derived: D) -> None:
        last = max(self._seen, default=0)
        while True:
            query = sa.select(chunks.c.id, self._column).where(chunks.c.id > last).order_by(chunks.c.id)
            rows = connection.execute(query.limit(READ_ROWS)).fetchall()
            if not rows:
                return
            filled = [row for row in rows if row[1]]
            if filled:
                derived.add([row[0] for row in filled], self._decode([row[1] for row in filled]))
            # Only now: what an interruption kept from being added is added the next time.
            self._seen.update(row[0] for row in rows)
            last = rows[-1][0]


def _vectors(blobs: list[bytes]) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1)


class Retrieval:
    """Searches the chunks of one database; follows changes made by any process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._index: _Follower[VectorIndex] = _Follower(database, chunks.c.vector, _vectors)
        self._finder: _Follower[TextFinder] = _Follower(database, chunks.c.text, list)

    def nearest(self, vector: Vectors, k: int, filter: Filter | None) -> list[Hit]:
        """Find the k chunks nearest a unit vector among those that pass the filter, best first."""
        if filter is not None and not callable(filter):
            check_kind(
                filter, Mapping, "A filter", 'Give metadata such as {"lang": "en"}, or a function of the metadata.'
            )
        index = self._index.fresh(lambda: VectorIndex(len(vector)))
        among = None if filter is None else self._matching(filter)
        found = [neighbour.id for neighbour in index.search(vector, k + SPARE, among=among)]
        return self.hits(dict(self._scored(vector, found)[:k]))

    def _scored(self, vector: Vectors, ids: Sequence[int]) -> list[tuple[int, float]]:
        """Ids with the cosine of their stored vector, highest first: the index rounds its vectors."""
        with self._database.reading() as connection:
            query = sa.select(chunks.c.id, chunks.c.vector)
            found = [connection.execute(query.where(chunks.c.id.in_(part))).fetchall() for part in parts(ids)]
        scores = {row.id: float(vector @ np.frombuffer(row.vector, "<f4")) for rows in found for row in rows}
        return sorted(((i, scores[i]) for i in ids if i in scores), key=lambda pair: pair[1], reverse=True)

    def find(self, text: str) -> list[Found]:
        """Find the chunks that stand in a text word for word, from left to right, none overlapping."""
        # Separators and tags between chunks are many, and hold none.
        matches = self._finder.fresh(TextFinder).find(text) if len(text) >= SHORTEST else []
        if not matches:
            return []
        chunks = {row: hit.chunk for row, hit in self._by_row(match.id for match in matches).items()}
        # Equal hashes are no proof of equal texts, and a chunk may have been removed meanwhile.
        return [
            Found(match.start, match.stop, chunks[match.id])
            for match in matches
            if match.id in chunks and chunks[match.id].text == text[match.start : match.stop]
        ]

    def with_vectors(self, hits: Sequence[Hit]) -> tuple[list[Hit], list[Vectors]]:
        """Chunks with the unit vector [dimension] of each; those removed meanwhile are left out."""
        vectors: dict[str, Vectors] = {}
        with self._database.reading() as connection:
            for part in parts([hit.chunk.id for hit in hits]):
                query = sa.select(chunks.c.name, chunks.c.vector).where(chunks.c.name.in_(part))
                vectors.update((name, np.frombuffer(vector, dtype="<f4")) for name, vector in connection.execute(query))
        hits = [hit for hit in hits if hit.chunk.id in vectors]
        return hits, [vectors[hit.chunk.id] for hit in hits]

    def _matching(self, filter: Filter) -> list[int]:
        """Row ids of the chunks of documents that pass a filter; it never sees documents that searches do not find."""
        found = sa.select(chunks.c.id, chunks.c.document_id).where(sa.func.length(chunks.c.vector) > 0)
        with self._database.reading() as connection:
            pairs = connection.execute(found).fetchall()
            searched = {document for _, document in pairs}
            rows = connection.execute(sa.select(documents.c.id, documents.c.metadata)).fetchall()
            wanted = {row.id for row in rows if row.id in searched and passes(filter, row.metadata)}
        return [chunk for chunk, document in pairs if document in wanted]

    def hits(self, scores: Mapping[int, float]) -> list[Hit]:
        """Chunks by row id, in the order given; ids deleted meanwhile are left out."""
        rows = self._by_row(scores)
        return [replace(rows[i], score=score) for i, score in scores.items() if i in rows]

    def _by_row(self, ids: Iterable[int]) -> dict[int, Hit]:
        return dict(self._rows(chunks.c.id, list(ids)))

    def _rows(self, column: sa.Column[Any], values: Sequence[Any]) -> list[tuple[int, Hit]]:
        """Chunks whose column (of chunks or documents) has one of the values, with their row ids."""
        query = (
            sa.select(*CHUNK_COLUMNS, *DOCUMENT_COLUMNS)
            .join(documents, chunks.c.document_id == documents.c.id)
            .order_by(chunks.c.id)
        )
        with self._database.reading() as connection:
            found = (connection.execute(query.where(column.in_(part))) for part in parts(values))
            return [(row.id, _hit(row, 0.0)) for result in found for row in result]

    def by_id(self, ids: Sequence[str]) -> dict[str, Hit]:
        """Chunks by their ids; those that are not there are left out."""
        return {hit.chunk.id: hit for _, hit in self._rows(chunks.c.name, ids)}

    def by_content(self, content: str) -> list[Hit]:
        """Chunks with these token ids, given by hash; a tokenizer may read texts that differ alike."""
        return [hit for _, hit in self._rows(chunks.c.content, [content])]

    def by_document(self, ids: Sequence[str]) -> list[Hit]:
        """Chunks of documents, by the documents' ids; those that are not there are left out."""
        return [hit for _, hit in self._rows(documents.c.name, ids)]

    def every_chunk(self) -> list[Chunk]:
        """All chunks, by row id."""
        with self._database.reading() as connection:
            ids = list(connection.execute(sa.select(chunks.c.id).order_by(chunks.c.id)).scalars())
        return self.chunks(ids)

    def chunks(self, ids: Iterable[int]) -> list[Chunk]:
        """Chunks by row id."""
        return [hit.chunk for hit in self._by_row(ids).values()]


def _hit(row: Any, score: float) -> Hit:
    token_ids = tuple(np.frombuffer(row.token_ids, dtype="<i4").tolist())
    chunk = Chunk(row.name, row.document, row.ordinal, row.start, row.stop, row.text, token_ids, row.content)
    return Hit(chunk, score, row.title, row.source, row.metadata)
