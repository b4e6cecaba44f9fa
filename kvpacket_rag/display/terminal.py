"""Console output of the command: answers, reports and progress bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress


__all__ = ["bar", "counted", "err", "out"]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, singular or plural: "1 packet", "1,200 packets"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bar(*columns: str) -> Progress:
    """Return a progress bar on the error stream, with additional text columns."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    texts = [TextColumn(column) for column in columns]
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *texts, TimeRemainingColumn(), console=err
    )
