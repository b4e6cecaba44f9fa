"""Prepare pages for mkdocs (`hooks`) and docstrings for griffe (`extensions`) before they are rendered."""

from __future__ import annotations

import re
from typing import Any

import griffe


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove `no-run`, which marks blocks that tests do not run. The renderer does not know this mark."""
    return markdown.replace("```python no-run\n", "```python\n")


class Parameters(griffe.Extension):
    """Turns parameters that docstrings explain in running text, as `name: what it is.`, into list items on the page."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite the docstring of a function."""
        if func.docstring is not None:
            func.docstring.value = listed(func.docstring.value, [parameter.name for parameter in func.parameters])


def listed(text: str, parameters: list[str]) -> str:
    """Return a docstring with a list item for each parameter, and with a separate paragraph for errors and results."""
    if names := "|".join(re.escape(name) for name in parameters if name != "self"):
        explained = rf"(?:(?<=\n)|^|(?<=\. )|(?<=; ))((?:{names})(?:, (?:{names}))*): "
        text = re.sub(explained, lambda match: f"\n- `{match[1]}`: ", text)
    first = text.find("\n- `")
    if first >= 0:
        text = text[:first].rstrip() + "\n" + re.sub(r"[ \n]*\n- `", "\n- `", text[first:])
    return re.sub(r"(?:(?<=\n)|(?<=\. ))(Raises `|Returns )", r"\n\n\1", text) if first >= 0 else text
