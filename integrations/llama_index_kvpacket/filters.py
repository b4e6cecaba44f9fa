"""Translate LlamaIndex's metadata filters into the filter language of the store."""

from __future__ import annotations

from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

__all__ = ["translated"]

OPERATORS: dict[FilterOperator, str] = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$any",
    FilterOperator.ALL: "$all",
    FilterOperator.CONTAINS: "$contains",
    FilterOperator.TEXT_MATCH: "$contains",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "$icontains",
}
TAKE_LISTS = ("$in", "$nin", "$any", "$all")


def translated(filters: MetadataFilters) -> dict[str, Any]:
    """Return the filters as conditions of `kvpacket_rag.Filter`: all, any or none of them hold. Filters may be nested."""
    parts = [translated(item) if isinstance(item, MetadataFilters) else _one(item) for item in filters.filters]
    if not parts:
        return {}
    if filters.condition is FilterCondition.OR:
        return {"$or": parts}
    if filters.condition is FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    return {"$and": parts}


def _one(condition: MetadataFilter) -> dict[str, Any]:
    key = condition.key
    value: Any = condition.value
    if condition.operator is FilterOperator.IS_EMPTY:
        empty: tuple[Any, ...] = ("", [], {})
        return {"$or": [{key: {"$exists": False}}, *({key: {"$eq": one}} for one in empty)]}
    operator = OPERATORS[condition.operator]
    if operator in TAKE_LISTS and not isinstance(value, list | tuple | set):
        value = [value]
    return {key: {operator: value}}
