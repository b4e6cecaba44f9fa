"""Threads take turns at a model, in the order they ask."""

from __future__ import annotations

import threading
import time

from kvpacket_rag.engine.fair_lock import FairLock


def test_waiters_come_in_the_order_they_asked():
    turns, order = FairLock(), []

    def wait(number: int) -> None:
        with turns:
            order.append(number)

    threads = []
    with turns:
        for number in range(6):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            while len(turns._waiting) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(6))


def test_who_asks_again_at_once_does_not_keep_the_others_out():
    turns, seen, stop = FairLock(), [], threading.Event()

    def other() -> None:
        with turns:
            seen.append(len(mine))
        stop.set()

    mine: list[int] = []
    with turns:
        thread = threading.Thread(target=other)
        thread.start()
        while not turns._waiting:
            time.sleep(0.001)
    while not stop.is_set():
        with turns:
            mine.append(1)
    thread.join()
    assert seen == [0]


def test_the_owner_may_ask_again_and_an_error_gives_the_turn_back():
    turns = FairLock()
    try:
        with turns, turns:
            raise KeyError
    except KeyError:
        pass
    done = threading.Event()
    threading.Thread(target=lambda: (turns.__enter__(), turns.__exit__(), done.set())).start()
    assert done.wait(5)
