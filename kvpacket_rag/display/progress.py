"""Progress bars for notebooks and terminals."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvpacket_rag.display.html import progress_html
from kvpacket_rag.display.terminal import bar, err
from kvpacket_rag.events import BuildProgress

__all__ = ["ProgressBar", "progress_bar", "quiet_loading"]

BETWEEN = 0.1
"""Minimum seconds between two updates in a notebook. Each update is a message to the browser."""


class ProgressBar:
    """A callable that shows progress. It can be passed to every `progress` parameter of a store."""

    def __init__(self, draw: Callable[[int, int | None, str], None]) -> None:
        """Use `progress_bar` to create one."""
        self._draw = draw

    def __call__(self, done: BuildProgress | int, total: int | None = None) -> None:
        """Show the progress of a build, or `done` of `total`. A total of None means that the total is not known."""
        if isinstance(done, BuildProgress):
            rate = done.tokens / max(done.seconds, 1e-9)
            said = f"documents, {done.chunks:,} chunks encoded, {rate:,.0f} tokens/s" if done.chunks else "documents"
            self._draw(done.documents, done.total, said)
        else:
            self._draw(done, total, "")


@contextmanager
def progress_bar(title: str = "") -> Iterator[ProgressBar]:
    """Show a progress bar while a block runs: below the cell in a notebook, on the error stream in a terminal.

    The block reports its progress to the bar: `with progress_bar("Adding") as bar:`, then
    `kb.add(documents, progress=bar)`.
    """
    with _in_notebook(title) if err.is_jupyter else _in_terminal(title) as draw:
        yield ProgressBar(draw)


@contextmanager
def _in_terminal(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    with bar("{task.completed} {task.fields[said]}") as shown:
        task = shown.add_task(title, total=None, said="")
        yield lambda done, total, said: shown.update(task, completed=done, total=total, said=said)


@contextmanager
def _in_notebook(title: str) -> Iterator[Callable[[int, int | None, str], None]]:
    # This does not use rich, because its bars need widgets, which many notebooks lack.
    jupyter: Any = importlib.import_module("IPython.display")
    last: tuple[int, int | None, str] = (0, None, "")
    drawn = time.monotonic()
    handle = jupyter.display(jupyter.HTML(progress_html(title, *last)), display_id=True)

    def draw(done: int, total: int | None, said: str) -> None:
        nonlocal last, drawn
        last = (done, total, said)
        if time.monotonic() - drawn >= BETWEEN:
            handle.update(jupyter.HTML(progress_html(title, *last)))
            drawn = time.monotonic()

    try:
        yield draw
    finally:
        handle.update(jupyter.HTML(progress_html(title, *last)))


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide the progress bars of transformers inside the block, and restore the setting afterwards."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
