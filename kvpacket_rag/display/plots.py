"""Plots of reports. Only this module uses matplotlib, which is optional."""

from __future__ import annotations

from typing import Any

from kvpacket_rag.errors import require

__all__ = ["check_plots", "new_figure"]


def check_plots() -> None:
    """Raise `MissingDependencyError` if plots cannot be drawn. Call this before long work begins."""
    require("matplotlib", extra="bench", purpose="Drawing the report")


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure (width and height in inches) that needs no display."""
    figures = require("matplotlib.figure", extra="bench", purpose="Drawing the report")
    return figures.Figure(figsize=(width, height), layout="constrained")
