"""The filter language: conditions on metadata that select the documents a search considers.

A filter is written as a mapping, as in MongoDB and most vector databases: `{"lang": "de"}`, `{"year": {"$gte": 2021}}`,
`{"$or": [{"lang": "de"}, {"tags": {"$any": ["a", "b"]}}]}`. `parse` turns it into a tree of frozen conditions, `matches`
evaluates it on the metadata of one document, and `store.database.metadata_filters` runs it in the database. A function of the
metadata is a filter as well; it is called for every document.

A key that a document does not have counts as null. Values of different kinds (text, number, true or false, list, object,
null) are never equal. Dates and times are compared as the ISO 8601 texts that metadata stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpacket_rag.corpus.metadata import json_value
from kvpacket_rag.errors import InputError, check_kind

__all__ = [
    "OPERATORS",
    "And",
    "Comparison",
    "Condition",
    "Filter",
    "Not",
    "Or",
    "comparisons",
    "kind_of",
    "matches",
    "parse",
]

Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Selects the documents to search: conditions on metadata as a mapping, or a function of the metadata.

A bare value means `$eq`, a bare list `$in`. Operators: `$eq $ne $gt $gte $lt $lte $in $nin $exists $contains $icontains $any
$all`, and `$and $or $not` between conditions."""

ORDERED = ("$gt", "$gte", "$lt", "$lte")
LISTS = ("$in", "$nin", "$any", "$all")
COMPARISONS = ("$eq", "$ne", *ORDERED, *LISTS, "$exists", "$contains", "$icontains")
OPERATORS = (*COMPARISONS, "$and", "$or", "$not")
"""All operators."""


@dataclass(frozen=True)
class Comparison:
    """A condition on the value of one key."""

    key: str
    operator: str
    """One of the operators that compare values."""
    value: Any
    """A JSON value; a tuple for operators that take a list."""


@dataclass(frozen=True)
class And:
    """All parts hold. Without parts it holds for every document."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    """At least one part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The part does not hold."""

    part: Condition


Condition = Comparison | And | Or | Not


def parse(filter: Mapping[str, Any]) -> Condition:
    """Return a filter as a tree of conditions.

    Raises `InputError` for an unknown operator, an operator without anything to combine, or a value that the operator cannot
    use. The message names the operator and lists those that exist.
    """
    check_kind(filter, Mapping, "A filter", 'Give conditions such as {"lang": "en"}, or a function of the metadata.')
    parts = [_field(key, value) for key, value in filter.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _field(key: Any, value: Any) -> Condition:
    if not isinstance(key, str):
        raise InputError(f"The keys of a filter must be text; got {key!r}.")
    if not key.startswith("$"):
        return _on_key(key, value)
    if key in ("$and", "$or"):
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"{key} needs a list of at least one condition; got {value!r}.")
        parts = tuple(parse(part) for part in value)
        return And(parts) if key == "$and" else Or(parts)
    if key == "$not":
        return Not(parse(value))
    if key in COMPARISONS:
        raise InputError(f'{key} compares the value of a key; write it as {{"KEY": {{"{key}": {value!r}}}}}.')
    raise _unknown(key)


def _unknown(operator: str) -> InputError:
    return InputError(f"There is no filter operator {operator!r}. The operators are {', '.join(OPERATORS)}.")


def _on_key(key: str, value: Any) -> Condition:
    if isinstance(value, Mapping) and any(isinstance(name, str) and name.startswith("$") for name in value):
        parts = tuple(_comparison(key, operator, operand) for operator, operand in value.items())
        return parts[0] if len(parts) == 1 else And(parts)
    return _comparison(key, "$in" if isinstance(value, list | tuple | set | frozenset) else "$eq", value)


def _comparison(key: str, operator: Any, operand: Any) -> Condition:
    if operator == "$not":
        return Not(_on_key(key, operand))
    if operator not in COMPARISONS:
        raise _unknown(str(operator))
    value = json_value(operand, f"The value of {operator} for {key!r}")
    kind = kind_of(value)
    if operator in LISTS and kind != "list":
        raise InputError(f"{operator} for {key!r} needs a list of values; got {operand!r}.")
    if operator in ORDERED and kind not in ("number", "text"):
        raise InputError(f"{operator} for {key!r} needs a number, a text or a date; got {operand!r}.")
    if operator == "$exists" and kind != "boolean":
        raise InputError(f"$exists for {key!r} needs true or false; got {operand!r}.")
    if operator == "$icontains" and kind != "text":
        raise InputError(f"$icontains for {key!r} needs a text; got {operand!r}.")
    return Comparison(key, operator, tuple(value) if operator in LISTS else value)


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """Yield all comparisons of a tree."""
    if isinstance(condition, Comparison):
        yield condition
    else:
        for part in (condition.part,) if isinstance(condition, Not) else condition.parts:
            yield from comparisons(part)


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value: null, boolean, number, text, list or object."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list | tuple) else "object"


def matches(filter: Filter | Condition, metadata: Mapping[str, Any]) -> bool:
    """Return whether a document's metadata passes a filter.

    Raises `InputError` if `$gt`, `$gte`, `$lt` or `$lte` compares values of different kinds, such as a text with a number.
    """
    if isinstance(filter, Comparison | And | Or | Not):
        return _holds(filter, metadata)
    if callable(filter):
        return bool(filter(metadata))
    return _holds(parse(filter), metadata)


def _holds(condition: Condition, metadata: Mapping[str, Any]) -> bool:
    if isinstance(condition, Not):
        return not _holds(condition.part, metadata)
    if isinstance(condition, Comparison):
        return _compare(condition, metadata.get(condition.key))
    # Every part is evaluated, so that values of different kinds are reported whatever the other parts say.
    found = [_holds(part, metadata) for part in condition.parts]
    return any(found) if isinstance(condition, Or) else all(found)


def _equal(one: Any, other: Any) -> bool:
    """Compare JSON values: equal in kind and value. True is not 1."""
    if kind_of(one) != kind_of(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping):
        return set(one) == set(other) and all(_equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _among(value: Any, values: Sequence[Any]) -> bool:
    return any(_equal(value, one) for one in values)


def _compare(condition: Comparison, value: Any) -> bool:
    wanted = condition.value
    match condition.operator:
        case "$eq":
            return _equal(value, wanted)
        case "$ne":
            return not _equal(value, wanted)
        case "$in":
            return _among(value, wanted)
        case "$nin":
            return not _among(value, wanted)
        case "$exists":
            return (value is not None) is bool(wanted)
        case "$any" | "$all":
            own = value if isinstance(value, list | tuple) else [value]
            found = [_among(one, own) for one in wanted]
            return value is not None and (any(found) if condition.operator == "$any" else all(found))
        case "$contains":
            if isinstance(value, list | tuple):
                return _among(wanted, value)
            return isinstance(value, str) and isinstance(wanted, str) and wanted in value
        case "$icontains":
            return isinstance(value, str) and wanted.lower() in value.lower()
    return value is not None and _ordered(condition, value)


def _ordered(condition: Comparison, value: Any) -> bool:
    wanted = condition.value
    if kind_of(value) != kind_of(wanted):
        raise unlike(condition, value)
    smaller, larger = bool(value < wanted), bool(value > wanted)
    return {"$gt": larger, "$gte": not smaller, "$lt": smaller, "$lte": not larger}[condition.operator]


def unlike(condition: Comparison, value: Any) -> InputError:
    """Return the error for a value that an ordering operator cannot compare."""
    return InputError(
        f"{condition.operator} compares {condition.key!r} with {condition.value!r}, a {kind_of(condition.value)}, but a document has "
        f"{value!r} there, a {kind_of(value)}. Compare values of one kind."
    )
