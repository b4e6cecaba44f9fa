"""Filters run in the database: the same documents, and the same errors, as evaluating the filter in Python."""

from __future__ import annotations

import contextlib
import json
import logging

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpacket_rag.errors import InputError
from kvpacket_rag.retrieval.filters import matches, parse
from kvpacket_rag.store.chunk_rows import StoredChunks
from kvpacket_rag.store.database.database import Database
from kvpacket_rag.store.database.metadata_filters import to_sql
from kvpacket_rag.store.database.postgresql import PostgreSQL
from kvpacket_rag.store.database.schema import chunks, documents
from kvpacket_rag.store.database.sqlite import SQLite
from tests.support import servers

VECTOR = np.ones(2, "<f4").tobytes()

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.5, 2.0, 1e20, 2**53]),
    st.sampled_from(["", "a", "b", "ab", "A", "é", "1", "true", "null", "%", "_", "'", '"', "\\", "2024-01-02"]),
)  # fmt: skip
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(st.sampled_from(["x"]), scalars, max_size=1))
keys = st.sampled_from(["a", "b", "c d", "e.f", "$g", "ü"])
field_keys = st.sampled_from(["a", "b", "c d", "e.f", "ü", "never"])
metadatas = st.lists(st.dictionaries(keys, values, max_size=4), min_size=1, max_size=6)
ordered = st.sampled_from(["$gt", "$gte", "$lt", "$lte"])
fields = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$contains"]), values),
    st.tuples(ordered, st.one_of(st.integers(-3, 3), st.sampled_from([0.5, "a", "ab"]))),
    st.tuples(st.sampled_from(["$in", "$nin", "$any", "$all"]), st.lists(scalars, max_size=3)),
    st.tuples(st.just("$exists"), st.booleans()),
    st.tuples(st.just("$icontains"), st.sampled_from(["a", "É"])),
).map(lambda pair: {pair[0]: pair[1]})
plain = st.builds(
    lambda key, value: {key: value}, field_keys, st.one_of(fields, scalars, st.lists(scalars, max_size=2))
)
filters = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
        inner.map(lambda part: {"$not": part}),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def postgresql():
    with servers.postgresql() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        backend = SQLite(tmp_path / "store.db")
    else:
        backend = PostgreSQL(sa.make_url(request.getfixturevalue("postgresql")), "filters")
    with contextlib.closing(Database(backend)) as opened:
        yield opened


def fill(database, metadatas):
    with database.writing() as connection:
        connection.execute(sa.delete(documents))
        for number, metadata in enumerate(metadatas):
            row = {
                "name": str(number), "title": "", "source": "", "content": "", "metadata": metadata, "characters": 1, "added": 0.0
            }  # fmt: skip
            made = connection.execute(sa.insert(documents).values(**row)).inserted_primary_key[0]
            connection.execute(
                sa.insert(chunks).values(
                    name=str(number), document_id=made, ordinal=0, start=0, stop=1, text="x", token_ids=b"", content=str(number),
                    vector=VECTOR if number or len(metadatas) == 1 else b"",
                )
            )  # fmt: skip
    return [metadata for number, metadata in enumerate(metadatas) if number or len(metadatas) == 1]


def outcome(work):
    try:
        return work()
    except InputError:
        return "InputError"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(metadatas=metadatas, filters=st.lists(filters, min_size=8, max_size=8))
def test_the_database_finds_what_python_finds(database, metadatas, filters):
    searched = fill(database, json.loads(json.dumps(metadatas)))
    stored = StoredChunks(database)
    with database.reading() as connection:
        names = dict(connection.execute(sa.select(chunks.c.id, chunks.c.name)).fetchall())
    offset = len(metadatas) - len(searched)
    for filter in filters:
        expected = outcome(
            lambda filter=filter: {str(n + offset) for n, metadata in enumerate(searched) if matches(filter, metadata)}
        )
        found = outcome(lambda filter=filter: {names[row] for row in stored.matching(filter)})
        assert found == expected, (filter, metadatas)


def test_most_conditions_run_in_the_database():
    for filter in (
        {"a": 1},
        {"a": {"$gte": "b"}},
        {"a": {"$contains": "x"}},
        {"$not": {"a": {"$in": [1, None, True]}}},
    ):
        assert to_sql(parse(filter), "sqlite") is not None
    for filter in ({"a": {"$eq": [1]}}, {"a": {"$icontains": "x"}}, {'a"b': 1}, {"a": 2**60}):
        assert to_sql(parse(filter), "sqlite") is None


def test_a_key_that_no_document_has_is_warned_of_once(database, caplog):
    fill(database, [{"lang": "de"}, {"lang": "en"}])
    stored = StoredChunks(database)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert stored.matching({"lnag": "de"}) == []
            stored.matching({"lang": "de"})
    assert [record.message for record in caplog.records] == [
        "A filter names the metadata key 'lnag', which no document has."
    ]
