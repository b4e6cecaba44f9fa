"""Whose turn it is: a lock that is handed on in the order it was asked for."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["FairLock"]


class FairLock:
    """A re-entrant lock whose waiters come in order, so that no thread that asks again and again keeps others out."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> FairLock:
        thread = threading.get_ident()
        with self._guard:
            if self._owner in (None, thread):
                self._owner, self._depth = thread, self._depth + 1
                return self
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append((thread, ticket))
        try:
            ticket.acquire()  # until the owner hands the turn on
        except BaseException:  # interrupted: leave the queue, or pass on what was just handed over
            with self._guard:
                if (thread, ticket) in self._waiting:
                    self._waiting.remove((thread, ticket))
                else:
                    self._hand_on()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._depth -= 1
            if not self._depth:
                self._hand_on()

    def _hand_on(self) -> None:
        """Give the turn to who waits longest, if anybody does."""
        self._owner, self._depth = None, 0
        if self._waiting:
            self._owner, ticket = self._waiting.popleft()
            self._depth = 1
            ticket.release()
