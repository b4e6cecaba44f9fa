"""Pictures of reports; the one place that knows matplotlib, which is optional."""

from __future__ import annotations

from typing import Any

from kvpacket_rag.errors import require

__all__ = ["check_plots", "new_figure"]


def check_plots() -> None:
    """Raise `MissingDependencyError` if pictures cannot be drawn, before long work is begun."""
    require("matplotlib", extra="bench", purpose="Drawing the report")


def new_figure(width: float, height: float) -> Any:
    """Make an empty matplotlib figure (inches) that needs no display."""
    figures = require("matplotlib.figure", extra="bench", purpose="Drawing the report")
    return figures.Figure(figsize=(width, height), layout="constrained")
