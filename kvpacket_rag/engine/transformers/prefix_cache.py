"""States of token sequences that open many contexts, kept for the next time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kvpacket_rag.packets.packet import GroupStates

__all__ = ["PrefixCache"]

KEPT = 8
"""Anchors and prefixes whose states a model keeps, at most."""
KEPT_TOKENS = 4096
"""Their tokens together, at most: earlier turns of conversations can be long."""

States = tuple[GroupStates, ...]
Key = tuple[int | str, ...]
"""Token ids, and before them what else the states depend on."""


class PrefixCache:
    """The states of the last few sequences asked for; safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, States] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, ids: Key) -> bool:
        return ids in self._kept

    def get(self, ids: Key, compute: Callable[[], States]) -> States:
        """Give the states of a sequence, computed if they are not kept."""
        with self._lock:
            if (states := self._kept.get(ids)) is None:
                states = self._kept[ids] = compute()
            self._kept.move_to_end(ids)
            while len(self._kept) > 1 and (len(self._kept) > KEPT or sum(map(len, self._kept)) > KEPT_TOKENS):
                self._kept.popitem(last=False)
        return states
