"""Slow generators for event loops. Each step runs in a thread, and no step starts after the consumer is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any, Generic, TypeVar

__all__ = ["steps_in_thread"]

T = TypeVar("T")
DONE = object()


class _Steps(Generic[T]):
    """A generator that one thread advances and another thread may close at any time."""

    def __init__(self, steps: Generator[T, Any, Any]) -> None:
        self._steps, self._stepping, self._given_up = steps, threading.Lock(), False

    def next(self) -> Any:
        """Return the next item, or `DONE` after the last one."""
        try:
            with self._stepping:
                return next(self._steps, DONE)
        finally:
            if self._given_up:
                self.give_up()

    def give_up(self) -> None:
        """Close the generator now, or as soon as the current step has ended."""
        self._given_up = True
        if self._stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._stepping.release()


async def steps_in_thread(steps: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """Yield what `steps` yields, without blocking the event loop.

    If the consumer closes this generator or is cancelled, `steps` is closed as well. Errors of `steps` are raised here.
    """
    stepping = _Steps(steps)
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(stepping.next))
            step.add_done_callback(_heard)
            # Shielded, because the thread continues its step when the consumer is cancelled.
            item = await asyncio.shield(step)
            if item is DONE:
                return
            yield item
    finally:
        stepping.give_up()


def _heard(step: asyncio.Future[Any]) -> None:
    """Mark the error of a step as retrieved, so that asyncio does not log it if the consumer is gone."""
    if not step.cancelled():
        step.exception()
