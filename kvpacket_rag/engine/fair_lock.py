"""A fair lock: threads acquire it in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["FairLock"]


class FairLock:
    """A re-entrant lock that threads acquire in the order of their requests, so that no thread starves the others."""

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
            ticket.acquire()  # until the owner passes the lock on
        except BaseException:  # interrupted: leave the queue, or pass the lock on if this thread just received it
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
        """Pass the lock to the thread that has waited longest, if any thread is waiting."""
        self._owner, self._depth = None, 0
        if self._waiting:
            self._owner, ticket = self._waiting.popleft()
            self._depth = 1
            ticket.release()
