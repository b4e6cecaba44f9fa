"""Evaluate LlamaIndex's metadata filters on metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

__all__ = ["passes"]

Metadata = Mapping[str, Any]


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison that is false, instead of raising an error, for values that cannot be ordered."""

    def holds(value: Any, wanted: Any) -> bool:
        try:
            return compare(value, wanted)
        except TypeError:
            return False

    return holds


def _many(value: Any) -> list[Any]:
    """Return a value as a list. Text and numbers become lists of one item."""
    return list(value) if isinstance(value, list | tuple | set) else [value]


TESTS: dict[FilterOperator, Callable[[Any, Any], bool]] = {
    FilterOperator.EQ: lambda value, wanted: value == wanted,
    FilterOperator.GT: _ordered(lambda value, wanted: value > wanted),
    FilterOperator.LT: _ordered(lambda value, wanted: value < wanted),
    FilterOperator.GTE: _ordered(lambda value, wanted: value >= wanted),
    FilterOperator.LTE: _ordered(lambda value, wanted: value <= wanted),
    FilterOperator.IN: lambda value, wanted: value in _many(wanted),
    FilterOperator.ANY: lambda value, wanted: any(item in _many(value) for item in _many(wanted)),
    FilterOperator.ALL: lambda value, wanted: all(item in _many(value) for item in _many(wanted)),
    FilterOperator.TEXT_MATCH: lambda value, wanted: str(wanted) in str(value),
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda value, wanted: str(wanted).casefold() in str(value).casefold(),
    FilterOperator.CONTAINS: lambda value, wanted: isinstance(value, list | tuple) and wanted in value,
}
"""Tests for values that are present. A missing value passes only the operators NE, NIN and IS_EMPTY."""


def _one(condition: MetadataFilter, metadata: Metadata) -> bool:
    value = metadata.get(condition.key)
    operator = condition.operator
    if operator is FilterOperator.IS_EMPTY:
        return value is None or value in ("", [], {})
    if operator is FilterOperator.NE:
        return bool(value != condition.value)
    if operator is FilterOperator.NIN:
        return value not in _many(condition.value)
    return value is not None and TESTS[operator](value, condition.value)


def passes(filters: MetadataFilters, metadata: Metadata) -> bool:
    """Return whether metadata passes all, any or none of the filters. Filters may be nested."""
    found = (
        passes(item, metadata) if isinstance(item, MetadataFilters) else _one(item, metadata)
        for item in filters.filters
    )
    if not filters.filters:
        return True
    if filters.condition is FilterCondition.OR:
        return any(found)
    if filters.condition is FilterCondition.NOT:
        return not any(found)
    return all(found)
