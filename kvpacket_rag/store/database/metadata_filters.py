"""Metadata filters in SQL: the same conditions as `retrieval.filters.matches`, evaluated by SQLite or PostgreSQL.

Not every condition can be run in the database: equality with lists and objects, text without regard to case, numbers that
doubles cannot hold, and keys with quotes are left to Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import sqlalchemy as sa

from kvpacket_rag.retrieval.filters import ORDERED, Comparison, Condition, Not, Or, comparisons, kind_of
from kvpacket_rag.store.database.schema import documents

__all__ = ["present", "to_sql", "unlike_values"]

EXACT = 2**53
"""Integers up to this size are the same number in JSON, SQLite, PostgreSQL and Python."""
COMPARE: Mapping[str, Any] = {
    "$gt": lambda a, b: a > b, "$gte": lambda a, b: a >= b, "$lt": lambda a, b: a < b, "$lte": lambda a, b: a <= b
}  # fmt: skip


class _Json(Protocol):
    """A key of the metadata column in one dialect of SQL."""

    def is_kind(self, kind: str) -> sa.ColumnElement[bool]:
        """The value has this kind; "null" also holds for a missing key."""

    def text(self) -> sa.ColumnElement[Any]:
        """The value as text, for values that are text."""

    def number(self) -> sa.ColumnElement[Any]:
        """The value as a number, for values that are numbers."""

    def has(self, value: Any) -> sa.ColumnElement[bool]:
        """The value is a list that contains this text, number, true, false or null."""


class _SQLite:
    TYPES: Mapping[str, tuple[str, ...]] = {
        "text": ("text",), "number": ("integer", "real"), "boolean": ("true", "false"), "list": ("array",),
        "object": ("object",),
    }  # fmt: skip

    def __init__(self, key: str) -> None:
        self._path = f'$."{key}"'
        self._type = sa.func.json_type(documents.c.metadata, self._path)
        self._value = sa.func.json_extract(documents.c.metadata, self._path, type_=sa.types.NullType())

    def is_kind(self, kind: str) -> sa.ColumnElement[bool]:
        if kind == "null":
            return sa.func.coalesce(self._type, "null") == "null"
        return sa.func.coalesce(self._type, "null").in_(self.TYPES[kind])

    def text(self) -> sa.ColumnElement[Any]:
        return sa.cast(self._value, sa.Text)

    def number(self) -> sa.ColumnElement[Any]:
        return self._value

    def has(self, value: Any) -> sa.ColumnElement[bool]:
        # json_each of a scalar yields the scalar: the caller has checked that this is a list.
        each = sa.func.json_each(documents.c.metadata, self._path).table_valued("value", "type")
        kind = kind_of(value)
        if kind == "null":
            found = each.c.type == "null"
        elif kind == "boolean":
            found = each.c.type == ("true" if value else "false")
        else:
            found = sa.and_(each.c.type.in_(self.TYPES[kind]), each.c.value == sa.literal(value))
        return sa.exists(sa.select(sa.literal(1)).select_from(each).where(found))


class _PostgreSQL:
    TYPES: Mapping[str, str] = {
        "text": "string",
        "number": "number",
        "boolean": "boolean",
        "list": "array",
        "object": "object",
    }

    def __init__(self, key: str) -> None:
        self._value = documents.c.metadata.op("->")(sa.literal(key, sa.Text))
        self._text = documents.c.metadata.op("->>")(sa.literal(key, sa.Text))
        self._type = sa.func.json_typeof(self._value)

    def is_kind(self, kind: str) -> sa.ColumnElement[bool]:
        if kind == "null":
            return sa.func.coalesce(self._type, "null") == "null"
        return sa.func.coalesce(self._type, "null") == self.TYPES[kind]

    def text(self) -> sa.ColumnElement[Any]:
        return sa.cast(self._text, sa.Text).collate("C")

    def number(self) -> sa.ColumnElement[Any]:
        # A cast of text fails: the database may evaluate it for other kinds too, unless a case keeps it away.
        return sa.case((self._type == "number", sa.cast(self._text, sa.Double)), else_=None)

    def has(self, value: Any) -> sa.ColumnElement[bool]:
        own = sa.case((self._type == "array", self._value), else_=sa.literal_column("'[]'::json"))
        each = sa.func.json_array_elements(own).table_valued(sa.column("value", sa.JSON), name="each")
        kind, item = kind_of(value), sa.column("value", sa.JSON)
        kinds = sa.func.json_typeof(item)
        if kind == "null":
            found = kinds == "null"
        else:
            as_text = item.op("#>>")(sa.literal_column("'{}'::text[]"))
            if kind == "number":
                same = sa.case((kinds == "number", sa.cast(as_text, sa.Double)), else_=None) == sa.literal(float(value))
            else:
                same = as_text == (str(value).lower() if kind == "boolean" else value)
            found = sa.and_(kinds == self.TYPES[kind], same)
        return sa.exists(sa.select(sa.literal(1)).select_from(each).where(found))


def _json(key: str, dialect: str) -> _Json:
    return _SQLite(key) if dialect == "sqlite" else _PostgreSQL(key)


def _supported(value: Any, key: str) -> bool:
    if not key.isascii() or any(sign in key for sign in '"\\\0'):  # SQLite compares escaped keys
        return False
    if isinstance(value, tuple):
        return all(_supported(item, key) for item in value)
    if isinstance(value, str):
        return "\0" not in value
    return kind_of(value) in ("null", "boolean") or (kind_of(value) == "number" and abs(value) <= EXACT)


def to_sql(condition: Condition, dialect: str) -> sa.ColumnElement[bool] | None:
    """Return a condition on the documents table, or None if the database cannot run it with the same result."""
    if not all(one.operator != "$icontains" and _supported(one.value, one.key) for one in comparisons(condition)):
        return None
    return _sql(condition, dialect)


def _sql(condition: Condition, dialect: str) -> sa.ColumnElement[bool]:
    if isinstance(condition, Not):
        return sa.not_(_sql(condition.part, dialect))
    if isinstance(condition, Comparison):
        return _comparison(condition, _json(condition.key, dialect))
    parts = [_sql(part, dialect) for part in condition.parts]
    return sa.or_(sa.false(), *parts) if isinstance(condition, Or) else sa.and_(sa.true(), *parts)


def _equal(field: _Json, value: Any) -> sa.ColumnElement[bool]:
    """The value equals a scalar. Never null in the sense of SQL, so that `not` works."""
    kind = kind_of(value)
    if kind == "null":
        return field.is_kind("null")
    if kind == "text":
        return sa.and_(field.is_kind("text"), sa.func.coalesce(field.text() == sa.literal(value), sa.false()))
    if kind == "number":
        return sa.and_(field.is_kind("number"), sa.func.coalesce(field.number() == sa.literal(value), sa.false()))
    # true and false: as JSON text in both dialects
    return sa.and_(field.is_kind("boolean"), _is_true(field) if value else sa.not_(_is_true(field)))


def _is_true(field: _Json) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(field.text().in_(("1", "true")), sa.false())


def _comparison(condition: Comparison, field: _Json) -> sa.ColumnElement[bool]:
    operator, value = condition.operator, condition.value
    if operator in ("$eq", "$ne"):
        same = _equal(field, value)
        return same if operator == "$eq" else sa.not_(same)
    if operator in ("$in", "$nin"):
        among = sa.or_(sa.false(), *(_equal(field, one) for one in value))
        return among if operator == "$in" else sa.not_(among)
    if operator == "$exists":
        return sa.not_(field.is_kind("null")) if value else field.is_kind("null")
    if operator in ("$any", "$all"):
        found = [_holds(field, one) for one in value]
        some = sa.or_(sa.false(), *found) if operator == "$any" else sa.and_(sa.true(), *found)
        return sa.and_(sa.not_(field.is_kind("null")), some)
    if operator == "$contains":
        in_list = sa.and_(field.is_kind("list"), field.has(value))
        if kind_of(value) != "text":
            return in_list
        in_text = sa.and_(field.is_kind("text"), sa.func.coalesce(_within(field, value), sa.false()))
        return sa.or_(in_list, in_text)
    kind = kind_of(value)
    own = field.text() if kind == "text" else field.number()
    return sa.and_(field.is_kind(kind), sa.func.coalesce(COMPARE[operator](own, sa.literal(value)), sa.false()))


def _holds(field: _Json, value: Any) -> sa.ColumnElement[bool]:
    """The value is a list with this item, or is the item itself."""
    return sa.or_(sa.and_(field.is_kind("list"), field.has(value)), _equal(field, value))


def _within(field: _Json, part: str) -> sa.ColumnElement[bool]:
    if isinstance(field, _SQLite):
        return sa.func.instr(field.text(), part) > 0
    return sa.func.strpos(field.text(), part) > 0


def unlike_values(condition: Condition, dialect: str) -> list[tuple[Comparison, sa.ColumnElement[bool]]]:
    """Return each ordering comparison with the condition that a document's value is of another kind than its own."""
    found = []
    for one in comparisons(condition):
        if one.operator in ORDERED:
            field = _json(one.key, dialect)
            found.append((one, sa.not_(sa.or_(field.is_kind("null"), field.is_kind(kind_of(one.value))))))
    return found


def present(key: str, dialect: str) -> sa.ColumnElement[bool] | None:
    """Return the condition that a document has a key, or None if the database cannot tell."""
    return sa.not_(_json(key, dialect).is_kind("null")) if _supported(None, key) else None
