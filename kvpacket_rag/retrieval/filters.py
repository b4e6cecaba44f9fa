"""Metadata filters, which select the documents that a search considers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Filter", "passes"]


Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Selects the documents to search: metadata values (a list means any of its values), or a function of the metadata."""


def passes(filter: Filter, metadata: Mapping[str, Any]) -> bool:
    """Return whether a document's metadata passes a filter."""
    if callable(filter):
        return bool(filter(metadata))
    return all(
        metadata.get(key) in ([*value] if isinstance(value, list | tuple | set) else [value])
        for key, value in filter.items()
    )
