"""Reports of the time and size benchmarks, written as JSON, Markdown and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from kvpacket_rag.bench.environment import versions
from kvpacket_rag.bench.speed.timing import Spread
from kvpacket_rag.display.plots import new_figure

__all__ = ["Column", "Picture", "Report", "Table", "Value", "markdown", "write_report"]

Value = Spread | float | int | str | None

FORMATS: Mapping[str, tuple[float, str]] = {
    "ms": (1000, "{:,.0f} ms"),
    "fine ms": (1000, "{:,.2f} ms"),
    "ratio": (1, "{:.2f}"),
    "times": (1, "{:.1f}"),
    "count": (1, "{:,.0f}"),
    "number": (1, "{:.2f}"),
    "percent": (100, "{:.0f} %"),
    "MB": (1e-6, "{:,.1f} MB"),
    "text": (1, "{}"),
}
"""How values of each unit are shown: a factor and a format."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    title: str
    unit: str
    """One of `FORMATS`."""

    def show(self, value: Value) -> str:
        """Return the text of a cell."""
        if value is None:
            return "–"
        if isinstance(value, str):
            return value
        factor, form = FORMATS[self.unit]
        if not isinstance(value, Spread):
            return form.format(factor * value)
        number = form.split("}")[0] + "}"
        low, high = (number.format(factor * end) for end in (value.low, value.high))
        return f"{form.format(factor * value.median)} ({low}–{high})"


@dataclass(frozen=True)
class Table:
    """A table. Each row holds values by the key of their column."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]


@dataclass(frozen=True)
class Picture:
    """A line chart of the first table of a report."""

    x: str
    lines: tuple[str, ...]
    """Keys of the columns that are drawn. They have the same unit."""
    x_title: str
    y_title: str


@dataclass(frozen=True)
class Report:
    """The results of a benchmark."""

    title: str
    about: Mapping[str, Any]
    """Model, device, threads and settings."""
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    picture: Picture | None = None


def markdown(report: Report) -> str:
    """Return a report in Markdown."""
    about = ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in report.about.items())
    lines = [f"{report.title}: {about}. Values are medians, with the smallest and the largest value in brackets."]
    for table in report.tables:
        lines += ["", *([f"{table.name}:", ""] if table.name else [])]
        lines += [f"| {' | '.join(column.title for column in table.columns)} |", "|---" * len(table.columns) + "|"]
        for row in table.rows:
            lines.append(f"| {' | '.join(column.show(row.get(column.key)) for column in table.columns)} |")
    lines += ["", *report.notes]
    lines.append("Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()) + ".")
    return "\n".join(lines)


def _word(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_report(report: Report, folder: Path) -> str:
    """Write report.json, report.md and, if the report has a picture, report.png into a folder. Return the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(report)
    found = {
        "title": report.title,
        "about": dict(report.about),
        "versions": versions(),
        "tables": [{"name": t.name, "rows": [_plain(row) for row in t.rows]} for t in report.tables],
        "notes": list(report.notes),
    }
    (folder / "report.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")
    if report.picture is not None:
        _draw(report, report.picture, folder / "report.png")
    return text


def _plain(row: Mapping[str, Value]) -> dict[str, Any]:
    return {
        key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for key, value in row.items()
    }


def _draw(report: Report, picture: Picture, file: Path) -> None:
    """Draw lines on logarithmic axes, with the spread as a band."""
    table = report.tables[0]
    titles = {column.key: column.title for column in table.columns}
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for key in picture.lines:
        points = [(row[picture.x], row[key]) for row in table.rows if isinstance(row.get(key), Spread)]
        if points:
            _line(axes, points, titles[key])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [row[picture.x] for row in table.rows]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(picture.x_title)
    axes.set_ylabel(picture.y_title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(file, dpi=150)


def _line(axes: Any, points: Sequence[tuple[Any, Any]], title: str) -> None:
    xs, spreads = zip(*points, strict=True)
    (drawn,) = axes.plot(xs, [spread.median for spread in spreads], marker="o", label=title)
    axes.fill_between(
        xs, [s.low for s in spreads], [s.high for s in spreads], color=drawn.get_color(), alpha=0.15, linewidth=0
    )
