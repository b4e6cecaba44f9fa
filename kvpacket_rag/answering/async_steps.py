"""Slow generators for event loops: each step in a thread, and none after the reader is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any, Generic, TypeVar

__all__ = ["steps_in_thread"]

T = TypeVar("T")
DONE = object()


class _Steps(Generic[T]):
    """A generator that one thread steps through and another may give up at any time."""

    def __init__(self, steps: Generator[T, Any, Any]) -> None:
        self._steps, self._stepping, self._given_up = steps, threading.Lock(), False

    def next(self) -> Any:
        """What comes next, or `DONE`."""
        try:
            with self._stepping:
                return next(self._steps, DONE)
        finally:
            if self._given_up:
                self.give_up()

    def give_up(self) -> None:
        """Close the generator: now, or as soon as the step that runs has ended."""
        self._given_up = True
        if self._stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._stepping.release()


async def steps_in_thread(steps: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """Yield what `steps` yields, without blocking the event loop; closed or cancelled, `steps` is closed.

    Errors reach the reader.
    """
    stepping = _Steps(steps)
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(stepping.next))
            step.add_done_callback(_heard)
            # Shielded: the thread goes on with its step when the reader is cancelled.
            item = await asyncio.shield(step)
            if item is DONE:
                return
            yield item
    finally:
        stepping.give_up()


def _heard(step: asyncio.Future[Any]) -> None:
    """An error of a step whose reader is gone is nobody's."""
    if not step.cancelled():
        step.exception()
