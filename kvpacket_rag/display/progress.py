"""How far long work is, shown in notebooks and in terminals."""

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
"""Seconds between two pictures in a notebook, each of which is a message to the browser."""


class ProgressBar:
    """Told how far something is; fits every `progress` parameter of a store."""

    def __init__(self, draw: Callable[[int, int | None, str], None]) -> None:
        """Use `progress_bar`."""
        self._draw = draw

    def __call__(self, done: BuildProgress | int, total: int | None = None) -> None:
        """Show the progress of a build, or `done` of `total`; a total of None is not known."""
        if isinstance(done, BuildProgress):
            rate = done.tokens / max(done.seconds, 1e-9)
            said = f"documents, {done.chunks:,} chunks encoded, {rate:,.0f} tokens/s" if done.chunks else "documents"
            self._draw(done.documents, done.total, said)
        else:
            self._draw(done, total, "")


@contextmanager
def progress_bar(title: str = "") -> Iterator[ProgressBar]:
    """Show a bar while a block runs, in a notebook below its cell, in a terminal on the error stream.

    The block tells it how far it is: `with progress_bar("Adding") as bar:`, then `kb.add(documents, progress=bar)`.
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
    # Not with rich, whose bars need widgets, which many notebooks do not have.
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
    """Hide the progress bars of transformers inside the block, and put the setting back."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
