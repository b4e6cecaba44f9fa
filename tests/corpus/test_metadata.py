"""Metadata as loaders of other libraries produce them are stored as JSON values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from uuid import UUID

import numpy as np
import pytest

from kvpacket_rag import Document
from kvpacket_rag.errors import InputError


class Colour(Enum):
    RED = "red"


VALUES = [
    (date(2024, 5, 1), "2024-05-01"),
    (datetime(2024, 5, 1, 10, 30), "2024-05-01T10:30:00"),
    (datetime(2024, 5, 1, 10, tzinfo=timezone(timedelta(hours=2))), "2024-05-01T08:00:00+00:00"),
    (datetime(2024, 5, 1, 8, tzinfo=UTC), "2024-05-01T08:00:00+00:00"),
    (time(8, 15), "08:15:00"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Decimal("3.10"), 3.1),
    (Decimal(3), 3),
    (PurePosixPath("a/b.txt"), "a/b.txt"),
    (np.int64(4), 4),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.arange(3), [0, 1, 2]),
    ({"b", "a"}, ["a", "b"]),
    ((1, "x"), [1, "x"]),
    ({"nested": {"when": date(2024, 1, 2)}}, {"nested": {"when": "2024-01-02"}}),
    (Colour.RED, "red"),
    (None, None),
    (True, True),
    (2**70, 2**70),
]


@pytest.mark.parametrize(("value", "stored"), VALUES, ids=[str(n) for n in range(len(VALUES))])
def test_what_loaders_produce_becomes_json(value, stored):
    document = Document("text", metadata={"key": value})
    assert document.metadata == {"key": stored}
    assert type(document.metadata["key"]) is type(stored)
    json.dumps(document.metadata)


def test_values_survive_the_store(open_store):
    store = open_store()
    store.add([Document("The lamp is green.", id="a", metadata={str(n): value for n, (value, _) in enumerate(VALUES)})])
    hit = store.search("lamp")[0]
    assert hit.metadata == {str(n): stored for n, (_, stored) in enumerate(VALUES)}
    json.dumps(hit.metadata)
    assert [found.chunk.document for found in store.search("lamp", filter={"0": {"$gte": date(2024, 1, 1)}})] == ["a"]
    assert store.search("lamp", filter={"0": {"$gt": date(2025, 1, 1)}}) == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"bytes", r"metadata 'key' of document a is a bytes"),
        (float("nan"), r"metadata 'key' of document a is nan"),
        (np.float64("inf"), "is inf"),
        (Decimal("NaN"), "is NaN"),
        (object(), "is an? object"),
        ({"in": [1, b"x"]}, r"metadata 'key' of document a, at 'in', is a bytes"),
        ("\ud800", "half character"),
    ],
    ids=["bytes", "nan", "infinite", "decimal nan", "object", "nested bytes", "half a character"],
)
def test_what_json_cannot_hold_is_an_error_that_names_the_key(value, told):
    with pytest.raises(InputError, match=told):
        Document("text", id="a", metadata={"key": value})


def test_keys_are_text():
    assert Document("text", metadata={1: "a", Path("b").name: 2}).metadata == {"1": "a", "b": 2}
    with pytest.raises(InputError, match="keys must be text"):
        Document("text", metadata={None: 1})


def test_a_document_with_json_metadata_is_the_same_document_as_before():
    document = Document("text", id="a", metadata={"n": 1, "tags": ["x"], "deep": {"k": None}})
    assert document.content == Document("text", id="a", metadata=document.metadata).content
