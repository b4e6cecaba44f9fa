"""Slow generators for event loops: each step in a thread, and none after the reader is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

__all__ = ["steps_in_thread"]

T = TypeVar("T")


async def steps_in_thread(steps: Generator[T, Any, Any]) -> AsyncGenerator[T, None]:
    """Yield what `steps` yields, without blocking the event loop; closed or cancelled, `steps` is closed.

    Errors reach the reader.
    """
    done = object()
    while True:
        step = asyncio.ensure_future(asyncio.to_thread(next, steps, done))
        try:
            item = await asyncio.shield(step)
        except asyncio.CancelledError:
            step.add_done_callback(lambda _: steps.close())  # its thread is still in this step
            raise
        if item is done:
            return
        try:
            yield item  # type: ignore[misc]
        except GeneratorExit:
            steps.close()
            raise
