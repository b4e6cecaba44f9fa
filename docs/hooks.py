"""What the pages need before they are rendered: for mkdocs (`hooks`), and for griffe, which reads the docstrings (`extensions`)."""

from __future__ import annotations

import re
from typing import Any

import griffe


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take away the mark of blocks that tests do not run: the renderer knows no such thing."""
    return markdown.replace("```python no-run\n", "```python\n")


class Parameters(griffe.Extension):
    """Docstrings explain parameters in running text, `name: what it is.`; on the page each begins a line of a list."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite the docstring of a function."""
        if func.docstring is not None:
            func.docstring.value = listed(func.docstring.value, [parameter.name for parameter in func.parameters])


def listed(text: str, parameters: list[str]) -> str:
    """Give a docstring with a list item for each explained parameter, and what is raised as a paragraph of its own."""
    if names := "|".join(re.escape(name) for name in parameters if name != "self"):
        explained = rf"(?:(?<=\n)|^|(?<=\. )|(?<=; ))((?:{names})(?:, (?:{names}))*): "
        text = re.sub(explained, lambda match: f"\n- `{match[1]}`: ", text)
    first = text.find("\n- `")
    if first >= 0:
        text = text[:first].rstrip() + "\n" + re.sub(r"[ \n]*\n- `", "\n- `", text[first:])
    return re.sub(r"(?:(?<=\n)|(?<=\. ))(Raises `|Returns )", r"\n\n\1", text) if first >= 0 else text
