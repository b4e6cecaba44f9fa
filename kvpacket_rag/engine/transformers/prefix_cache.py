"""A cache of the states of token sequences that open many contexts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kvpacket_rag.packets.packet import GroupStates

__all__ = ["PrefixCache"]

KEPT = 8
"""Maximum number of anchors and prefixes whose states a model caches."""
KEPT_TOKENS = 4096
"""Maximum number of their tokens together, because earlier turns of conversations can be long."""

States = tuple[GroupStates, ...]
Key = tuple[int | str, ...]
"""Token ids, preceded by any other values that the states depend on."""


class PrefixCache:
    """The states of the most recently used sequences. Several threads may use one cache."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, States] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, ids: Key) -> bool:
        return ids in self._kept

    def get(self, ids: Key, compute: Callable[[], States]) -> States:
        """Return the states of a sequence. They are computed if they are not cached."""
        with self._lock:
            if (states := self._kept.get(ids)) is None:
                states = self._kept[ids] = compute()
            self._kept.move_to_end(ids)
            while len(self._kept) > 1 and (len(self._kept) > KEPT or sum(map(len, self._kept)) > KEPT_TOKENS):
                self._kept.popitem(last=False)
        return states
