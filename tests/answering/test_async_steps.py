"""Steps in threads: in order, with their errors, and none after the reader is gone."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kvpacket_rag.answering.async_steps import steps_in_thread


async def test_what_is_yielded_comes_in_order_from_other_threads():
    def steps():
        for _ in range(3):
            yield threading.current_thread() is threading.main_thread()

    assert [step async for step in steps_in_thread(steps())] == [False] * 3


async def test_an_error_reaches_the_reader():
    def steps():
        yield 1
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        [step async for step in steps_in_thread(steps())]


async def test_a_reader_that_leaves_closes_the_steps_when_the_one_that_runs_has_ended():
    closed, running = threading.Event(), threading.Event()

    def steps():
        try:
            while True:
                running.set()
                time.sleep(0.1)
                yield 1
        finally:
            closed.set()

    async def read() -> None:
        async for _ in steps_in_thread(steps()):
            pass

    task = asyncio.create_task(read())
    await asyncio.to_thread(running.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(closed.wait, 5)


def test_an_event_loop_that_ends_while_a_step_runs_leaves_no_complaint(caplog: pytest.LogCaptureFixture):
    def steps():
        yield 1
        time.sleep(0.2)
        raise RuntimeError("nobody hears this")

    async def main() -> None:
        async def read() -> None:
            async for _ in steps_in_thread(steps()):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        assert not task.done()
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        asyncio.run(main())
    time.sleep(0.3)
    assert not caplog.records
