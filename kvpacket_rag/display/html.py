"""Answers, comparisons and stores as HTML, for notebooks: pure functions from plain values to text.

Every text is escaped, nothing runs or is fetched, and colours are such as can be told apart on light and on dark ground;
whatever a colour says stands beside it in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["answer_html", "comparison_html", "milliseconds", "progress_html", "store_html"]

COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7")
"""Of the parts of a bar, in order; from the palette of Okabe and Ito, made for every kind of colour vision."""
SMALL = "font-size:90%;opacity:.85"


def milliseconds(seconds: float) -> str:
    """Give a time in milliseconds, with a decimal where it is short."""
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def answer_html(
    text: str,
    *,
    method: str,
    tokens: Sequence[tuple[str, int]],
    steps: Sequence[tuple[str, float]],
    first_token: float,
    sources: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Show an answer with where it came from and what it cost.

    method: "packet" or "full". tokens: numbers of tokens of the prompt, by where they came from. steps: seconds, by step.
    first_token: seconds until it. sources: (heading, passage), best first. notes: sentences.
    """
    how = "From packets" if method == "packet" else "With full prefill"
    counted = [(f"{count:,} {name}", float(count)) for name, count in tokens]
    timed = [(f"{name} {milliseconds(seconds)}", seconds) for name, seconds in steps]
    return _frame(
        f'<div style="{SMALL}">{how}</div>',
        _lines(text),
        _bar("Tokens of the prompt", counted),
        _bar(f"First token after {milliseconds(first_token)}", timed),
        *(f'<div role="note">⚠ {escape(note)}</div>' for note in notes),
        _passages(sources),
    )


def comparison_html(question: str, verdict: str, difference: Sequence[tuple[str, str]], sides: Sequence[str]) -> str:
    """Show two answers side by side, each given as the HTML of `answer_html`.

    verdict: which was faster and whether they agree, in words. difference: ("both", "full" or "packet", words), in order;
    empty where the answers agree.
    """
    marks = {
        "full": '<del title="with full prefill only">{}</del>',
        "packet": '<ins title="from packets only">{}</ins>',
    }
    words = " ".join(marks.get(whose, "{}").format(escape(part)) for whose, part in difference)
    legend = "<del>with full prefill only</del>, <ins>from packets only</ins>"
    columns = "".join(f'<div style="flex:1 1 20em;min-width:0">{side}</div>' for side in sides)
    return _frame(
        f"<strong>{escape(question)}</strong>",
        f"<div>{escape(verdict)}</div>",
        f'<div>{words}</div><div style="{SMALL}">{legend}</div>' if difference else "",
        f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;margin-top:.6em">{columns}</div>',
    )


def store_html(location: str, namespace: str, rows: Sequence[tuple[str, str]]) -> str:
    """Show a store as a table."""
    left = 'style="text-align:left"'
    cells = "".join(
        f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>'
        for name, value in [("namespace", namespace), *rows]
    )
    caption = (
        f'<caption style="text-align:left;white-space:nowrap">Document store <code>{escape(location)}</code></caption>'
    )
    return _frame(f"<table>{caption}<tbody>{cells}</tbody></table>")


def progress_html(title: str, done: int, total: int | None, text: str = "") -> str:
    """Show how far something is; a total of None is not known."""
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    label = escape(" ".join(part for part in (title, count, text) if part))
    # Of nothing, all is done; without a value the browser shows that the end is not known.
    value = "" if total is None else f' max="{total or 1}" value="{done if total else 1}"'
    return _frame(f'<progress aria-label="{label}"{value}></progress> {label}')


def _frame(*parts: str) -> str:
    # Notebooks typeset what stands between two dollar signs as mathematics unless a class forbids it; prices are none.
    classes = "tex2jax_ignore mathjax_ignore"
    return f'<div class="{classes}" style="max-width:60em;line-height:1.4">{"".join(parts)}</div>'


def _lines(text: str, more: str = "") -> str:
    """Text with its line breaks."""
    return f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;{more}">{escape(text)}</div>'


def _bar(title: str, parts: Sequence[tuple[str, float]]) -> str:
    """A bar of parts, each (what it is, with its number; its size), with what they are below it."""
    whole = sum(size for _, size in parts) or 1.0
    pieces = [(escape(name), 100 * size / whole, colour) for (name, size), colour in zip(parts, COLOURS, strict=False)]
    bar = "".join(
        f'<span title="{name}" style="width:{share:.2f}%;background:{colour}"></span>' for name, share, colour in pieces
    )
    legend = "".join(
        f'<span><span aria-hidden="true" style="color:{colour}">■</span> {name}</span>' for name, _, colour in pieces
    )
    spoken = escape(f"{title}: {', '.join(name for name, _ in parts)}")
    return (
        f'<div style="margin-top:.5em;font-size:90%">{escape(title)}'
        f'<div role="img" aria-label="{spoken}" style="display:flex;height:.7em;border-radius:3px;overflow:hidden">{bar}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:0 1em">{legend}</div></div>'
    )


def _passages(sources: Sequence[tuple[str, str]]) -> str:
    if not sources:
        return ""
    items = "".join(
        f"<li><details><summary>{escape(heading)}</summary>{_lines(passage, SMALL)}</details></li>"
        for heading, passage in sources
    )
    return f'<div style="margin-top:.5em;font-size:90%">Sources<ol style="margin:0">{items}</ol></div>'
