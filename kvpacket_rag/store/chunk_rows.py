"""Reads the chunk rows of a store by id, by document and by content, and provides them for searches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.retrieval.filters import Condition, Filter, comparisons, matches, parse, unlike
from kvpacket_rag.retrieval.search import Column, Hit
from kvpacket_rag.store.database.database import Database, parts, read_fact
from kvpacket_rag.store.database.metadata_filters import present, to_sql, unlike_values
from kvpacket_rag.store.database.schema import chunks, documents

__all__ = ["StoredChunks"]

logger = logging.getLogger(__name__)

SEARCHED = sa.exists().where(chunks.c.document_id == documents.c.id, sa.func.length(chunks.c.vector) > 0)
"""Whether searches find a document."""
CHUNK_COLUMNS = [column for column in chunks.c if column.name != "vector"]
DOCUMENT_COLUMNS = [
    documents.c.name.label("document"), documents.c.title, documents.c.source, documents.c.metadata
]  # fmt: skip


class _Snapshot:
    """The chunk rows within one read transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def generation(self) -> int:
        """Return the store's generation number."""
        return int(read_fact(self._connection, "generation", 0))

    def after(self, row: int, column: Column, limit: int) -> list[tuple[int, Any]]:
        """Return row ids above `row` with the values of a column."""
        query = sa.select(chunks.c.id, chunks.c[column]).where(chunks.c.id > row).order_by(chunks.c.id).limit(limit)
        return [(found[0], found[1]) for found in self._connection.execute(query)]

    def count(self) -> int:
        """Return the number of chunks."""
        return int(self._connection.execute(sa.select(sa.func.count()).select_from(chunks)).scalar_one())

    def ids(self) -> set[int]:
        """Return all row ids."""
        return set(self._connection.execute(sa.select(chunks.c.id)).scalars())


class StoredChunks:
    """Reads the chunk rows of one database. Threads may use it at the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known_keys: set[str] = set()

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        """Open a consistent view of the rows."""
        with self._database.reading() as connection:
            yield _Snapshot(connection)

    def vectors(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Return stored vectors by row id."""
        return self._vectors(chunks.c.id, ids)

    def vectors_by_name(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return stored vectors by chunk id."""
        return self._vectors(chunks.c.name, names)

    def _vectors(self, column: sa.Column[Any], values: Sequence[Any]) -> dict[Any, bytes]:
        found: dict[Any, bytes] = {}
        with self._database.reading() as connection:
            for part in parts(values):
                rows = connection.execute(sa.select(column, chunks.c.vector).where(column.in_(part)))
                found.update((row[0], row[1]) for row in rows)
        return found

    def matching(self, filter: Filter) -> list[int]:
        """Return the row ids of the chunks of documents that pass a filter.

        The database runs the filter where it can do so with the same result. Documents without a vector, which searches
        do not find, are never passed to the filter.
        Raises `InputError` if the filter is malformed, or compares values of different kinds.
        """
        condition = None if callable(filter) else parse(filter)
        where = None if condition is None else to_sql(condition, self._database.dialect)
        with self._database.reading() as connection:
            if condition is not None:
                self._warn_of_unknown_keys(connection, condition)
            if condition is None or where is None:
                return _matching_in_python(connection, filter if condition is None else condition)
            searched = sa.func.length(chunks.c.vector) > 0
            self._check_kinds(connection, condition)
            passing = sa.select(documents.c.id).where(where)
            query = sa.select(chunks.c.id).where(searched, chunks.c.document_id.in_(passing))
            return list(connection.execute(query).scalars())

    def _check_kinds(self, connection: sa.Connection, condition: Condition) -> None:
        for comparison, other_kind in unlike_values(condition, self._database.dialect):
            found = connection.execute(sa.select(documents.c.metadata).where(other_kind, SEARCHED).limit(1)).scalar()
            if found is not None:
                raise unlike(comparison, found[comparison.key])

    def _warn_of_unknown_keys(self, connection: sa.Connection, condition: Condition) -> None:
        """Log a warning, once for each key, if no document has a key that a filter names: it may be a misspelling."""
        for key in {comparison.key for comparison in comparisons(condition)} - self._known_keys:
            self._known_keys.add(key)
            has = present(key, self._database.dialect)
            if has is not None and connection.execute(sa.select(documents.c.id).where(has).limit(1)).first() is None:
                logger.warning("A filter names the metadata key %r, which no document has.", key)

    def by_row(self, ids: Iterable[int]) -> dict[int, Hit]:
        """Return chunks by row id, with score 0; ids that are not there are left out."""
        return dict(self._rows(chunks.c.id, list(ids)))

    def by_id(self, ids: Sequence[str]) -> dict[str, Hit]:
        """Return chunks by their ids, with score 0; ids that are not there are left out."""
        return {hit.chunk.id: hit for _, hit in self._rows(chunks.c.name, ids)}

    def by_content(self, content: str) -> list[Hit]:
        """Return the chunks with these token ids, given as a hash. Different texts may have the same token ids."""
        return [hit for _, hit in self._rows(chunks.c.content, [content])]

    def by_document(self, ids: Sequence[str]) -> list[Hit]:
        """Return the chunks of documents, by document id; ids that are not there are left out."""
        return [hit for _, hit in self._rows(documents.c.name, ids)]

    def every_chunk(self) -> list[Chunk]:
        """Return all chunks, in the order in which they were added."""
        with self._database.reading() as connection:
            ids = list(connection.execute(sa.select(chunks.c.id).order_by(chunks.c.id)).scalars())
        return self.chunks(ids)

    def chunks(self, ids: Iterable[int]) -> list[Chunk]:
        """Return chunks by row id."""
        return [hit.chunk for hit in self.by_row(ids).values()]

    def _rows(self, column: sa.Column[Any], values: Sequence[Any]) -> list[tuple[int, Hit]]:
        """Return the chunks whose column (of chunks or documents) has one of the values, with their row ids."""
        query = (
            sa.select(*CHUNK_COLUMNS, *DOCUMENT_COLUMNS)
            .join(documents, chunks.c.document_id == documents.c.id)
            .order_by(chunks.c.id)
        )
        with self._database.reading() as connection:
            found = (connection.execute(query.where(column.in_(part))) for part in parts(values))
            return [(row.id, _hit(row)) for result in found for row in result]


def _hit(row: Any) -> Hit:
    token_ids = tuple(np.frombuffer(row.token_ids, dtype="<i4").tolist())
    chunk = Chunk(row.name, row.document, row.ordinal, row.start, row.stop, row.text, token_ids, row.content)
    return Hit(chunk, 0.0, row.title, row.source, row.metadata)


def _matching_in_python(connection: sa.Connection, filter: Filter | Condition) -> list[int]:
    searched = sa.select(chunks.c.id, chunks.c.document_id).where(sa.func.length(chunks.c.vector) > 0)
    pairs = connection.execute(searched).fetchall()
    with_vectors = {document for _, document in pairs}
    rows = connection.execute(sa.select(documents.c.id, documents.c.metadata)).fetchall()
    wanted = {row.id for row in rows if row.id in with_vectors and matches(filter, row.metadata)}
    return [chunk for chunk, document in pairs if document in wanted]
