"""Metadata as JSON values: what loaders of other libraries produce is converted, and what JSON cannot hold is refused.

Dates and times become ISO 8601 texts (those with a time zone in UTC, so that texts sort as times do), numbers of any library
become JSON numbers, UUIDs and paths become text, and tuples and sets become lists.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Set
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from kvpacket_rag.errors import InputError, check_text

__all__ = ["json_metadata", "json_value"]


def json_metadata(metadata: Mapping[Any, Any], whose: str) -> dict[str, Any]:
    """Return metadata as JSON values. whose: names the document in messages.

    Raises `InputError` naming the key for a value that JSON cannot hold, such as bytes, NaN or an object of a class.
    """
    return {_key(key, whose): json_value(value, f"The metadata {key!r} of {whose}") for key, value in metadata.items()}


def json_value(value: Any, what: str) -> Any:
    """Return a value as a JSON value. what: names it in messages. Raises `InputError` if JSON cannot hold it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return json_value(value.value, what)
    if isinstance(value, str):
        check_text(value, what)
        return str(value)
    if isinstance(value, date | time):  # a datetime is a date as well
        zoned = isinstance(value, datetime) and value.tzinfo is not None
        return (value.astimezone(UTC) if zoned else value).isoformat()  # type: ignore[union-attr]
    if isinstance(value, UUID | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {_key(key, what): json_value(item, f"{what}, at {key!r},") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, what) for item in value]
    if isinstance(value, Set):
        return sorted((json_value(item, what) for item in value), key=lambda item: (str(type(item)), str(item)))
    return _number(value, what)


def _number(value: Any, what: str) -> Any:
    """Return a number of any library as a Python number, and what has `tolist` (arrays) as its values."""
    if isinstance(value, Decimal | numbers.Real):
        number = float(value)
        if not math.isfinite(number):
            raise InputError(f"{what} is {value}, which JSON cannot hold. Leave it out, or give a number.")
        whole = isinstance(value, numbers.Integral) or (
            isinstance(value, Decimal) and value == value.to_integral_value()
        )
        return int(value) if whole else number  # type: ignore[arg-type]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return json_value(value.tolist(), what)
    raise InputError(
        f"{what} is a {type(value).__name__}, which JSON cannot hold. Give text, numbers, dates, lists or mappings of them."
    )


def _key(key: Any, what: str) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | None):
        raise InputError(f"A key of {what} is {key!r}; keys must be text.")
    return str(json_value(key, f"A key of {what}"))
