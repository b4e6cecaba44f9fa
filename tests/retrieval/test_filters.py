"""The filter language: what each operator means, and that a filter which means nothing is an error and not an empty result."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from uuid import UUID

import numpy as np
import pytest

from kvpacket_rag.errors import InputError
from kvpacket_rag.retrieval.filters import OPERATORS, matches, parse

DE = {"lang": "de", "year": 2023, "tags": ["c"], "day": "2023-05-01", "ok": True, "no": None, "in": {"a": 1}}
EN = {"lang": "en", "year": 2020, "tags": ["a", "b"], "day": "2020-01-31"}

CASES = [
    ({}, "both"),
    ({"lang": "de"}, "de"),
    ({"lang": ["de", "fr"]}, "de"),
    ({"lang": {"$in": ["de"]}}, "de"),
    ({"lang": {"$nin": ["de"]}}, "en"),
    ({"lang": {"$ne": "de"}}, "en"),
    ({"year": {"$gte": 2021}}, "de"),
    ({"year": {"$gt": 2020, "$lt": 2024}}, "de"),
    ({"year": {"$lte": 2020}}, "en"),
    ({"$and": [{"lang": "de"}, {"year": 2023}]}, "de"),
    ({"$or": [{"lang": "de"}, {"year": 2020}]}, "both"),
    ({"$not": {"lang": "de"}}, "en"),
    ({"year": {"$not": {"$gte": 2021}}}, "en"),
    ({"lang": "de", "year": 2020}, ""),
    ({"tags": {"$contains": "a"}}, "en"),
    ({"lang": {"$contains": "d"}}, "de"),
    ({"lang": {"$icontains": "D"}}, "de"),
    ({"tags": {"$any": ["a", "c"]}}, "both"),
    ({"tags": {"$all": ["a", "b"]}}, "en"),
    ({"lang": {"$any": ["de"]}}, "de"),
    ({"ok": {"$exists": True}}, "de"),
    ({"ok": {"$exists": False}}, "en"),
    ({"no": {"$exists": False}}, "both"),
    ({"ok": None}, "en"),
    ({"ok": 1}, ""),
    ({"year": "2023"}, ""),
    ({"year": 2023.0}, "de"),
    ({"tags": {"$eq": ["a", "b"]}}, "en"),
    ({"in": {"a": 1}}, "de"),
    ({"lang": {"$in": []}}, ""),
    ({"day": {"$gte": date(2021, 1, 1)}}, "de"),
    ({"day": {"$lt": datetime(2020, 1, 31, 12, tzinfo=UTC)}}, "en"),
    ({"year": {"$eq": np.int64(2023)}}, "de"),
    ({"year": {"$in": {Decimal(2023)}}}, "de"),
]


@pytest.mark.parametrize(("filter", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_each_operator_means_what_it_says(filter, expected):
    found = {"de": matches(filter, DE), "en": matches(filter, EN)}
    assert found == {name: expected in (name, "both") for name in found}


@pytest.mark.parametrize(
    ("filter", "told"),
    [
        ({"lang": {"$foo": 1}}, r"no filter operator '\$foo'. The operators are \$eq, \$ne"),
        ({"$nor": [{"lang": "de"}]}, r"no filter operator '\$nor'"),
        ({"lang": {"$in": ["de"], "other": 1}}, "no filter operator 'other'"),
        ({"$or": []}, r"\$or needs a list of at least one condition"),
        ({"$and": {}}, r"\$and needs a list of at least one condition"),
        ({"$or": [1]}, "A filter must be of the kind Mapping"),
        ({"$gt": 3}, r'write it as \{"KEY"'),
        ({"year": {"$in": 2023}}, r"\$in for 'year' needs a list"),
        ({"year": {"$gt": [1]}}, r"\$gt for 'year' needs a number, a text or a date"),
        ({"year": {"$exists": 1}}, "needs true or false"),
        ({"year": {"$icontains": 1}}, "needs a text"),
        ({"year": {"$eq": b"x"}}, r"value of \$eq for 'year' is a bytes"),
        ({"year": float("nan")}, "which JSON cannot hold"),
        ({1: "x"}, "keys of a filter must be text"),
        ("lang", "A filter must be of the kind Mapping, got str"),
    ],
    ids=str,
)
def test_a_filter_that_means_nothing_is_an_error(filter, told):
    with pytest.raises(InputError, match=told):
        parse(filter)


@pytest.mark.parametrize(
    "filter", [{"lang": {"$gt": 3}}, {"tags": {"$lt": "x"}}, {"$or": [{"lang": "de"}, {"ok": {"$gte": 1}}]}], ids=str
)
def test_values_of_different_kinds_are_not_ordered_in_silence(filter):
    with pytest.raises(InputError, match="Compare values of one kind"):
        matches(filter, DE)


def test_a_missing_value_is_below_and_above_nothing():
    assert not matches({"x": {"$gt": 1}}, DE)
    assert not matches({"x": {"$lte": 1}}, DE)
    assert matches({"x": {"$ne": 1}}, DE)
    assert matches({"x": {"$nin": [1]}}, DE)


def test_a_function_goes_on_working():
    assert matches(lambda metadata: metadata["year"] > 2021, DE)


def test_every_operator_is_tried():
    tried = str(CASES)
    assert [operator for operator in OPERATORS if f"'{operator}'" not in tried] == []


def test_conditions_are_frozen_values_that_hold_json():
    condition = parse({"when": {"$in": [date(2024, 1, 2), UUID(int=5), PurePosixPath("a/b")]}})
    assert condition.value == ("2024-01-02", "00000000-0000-0000-0000-000000000005", "a/b")
    assert hash(condition)
    with pytest.raises(AttributeError):
        condition.key = "other"
