"""A journal of finished work, as JSON lines. An interruption loses at most the line that it cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["append_lines", "read_lines"]


def append_lines(path: Path, values: Sequence[object]) -> None:
    """Append values to a file, each on its own line."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(value) + "\n" for value in values))


def read_lines(path: Path) -> list[Any]:
    """Return the values of a file, none if there is no file. A line that was cut off is removed from the file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]
