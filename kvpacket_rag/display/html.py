"""HTML of answers, comparisons and stores for notebooks. All functions are pure and turn plain values into text.

Every text is escaped, and the HTML runs no scripts and fetches nothing. Colours can be distinguished on light and dark
backgrounds, and everything that a colour shows is also written in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["answer_html", "comparison_html", "milliseconds", "progress_html", "store_html"]

COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7")
"""Colours of the parts of a bar, in order, from the palette of Okabe and Ito for every kind of colour vision."""
SMALL = "font-size:90%;opacity:.85"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with one decimal below 10 ms."""
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
    """Return the HTML of an answer with its sources and its cost.

    method: "packet" or "full". tokens: tokens of the prompt, by where their states came from, each as (label, tokens).
    steps: durations, each as (name, seconds). first_token: seconds until the first token.
    sources: (heading, passage), best first. notes: sentences about what made the answer slower or worse.
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
    """Return the HTML of two answers side by side.

    verdict: a sentence that says which was faster and whether they agree.
    difference: ("both", "full" or "packet", words), in order, or empty if the answers agree.
    sides: the HTML of each answer, from `answer_html`.
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
    """Return the HTML of a store as a table."""
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
    """Return the HTML of a progress bar. A total of None means that the total is not known."""
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    label = escape(" ".join(part for part in (title, count, text) if part))
    # A total of 0 is shown as complete. Without a value, the browser shows that the total is not known.
    value = "" if total is None else f' max="{total or 1}" value="{done if total else 1}"'
    return _frame(f'<progress aria-label="{label}"{value}></progress> {label}')


def _frame(*parts: str) -> str:
    # Notebooks typeset text between two dollar signs, for example two prices, as mathematics. These classes prevent it.
    classes = "tex2jax_ignore mathjax_ignore"
    return f'<div class="{classes}" style="max-width:60em;line-height:1.4">{"".join(parts)}</div>'


def _lines(text: str, more: str = "") -> str:
    """Return the HTML of a text that keeps its line breaks."""
    return f'<div style="white-space:pre-wrap;overflow-wrap:anywhere;{more}">{escape(text)}</div>'


def _bar(title: str, parts: Sequence[tuple[str, float]]) -> str:
    """Return the HTML of a bar with a legend below it. parts: (label with its number, size)."""
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
