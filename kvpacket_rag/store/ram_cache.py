"""An in-memory cache of the most recently used packets, limited by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from kvpacket_rag.packets.packet import Packet

__all__ = ["RamCache"]


class RamCache:
    """The most recently used packets, limited by bytes. Threads may use it at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self._max, self._bytes = max_bytes, 0
        self._packets: OrderedDict[str, Packet] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Packet | None:
        """Return a packet if it is cached, and mark it as used."""
        with self._lock:
            if (packet := self._packets.get(key)) is not None:
                self._packets.move_to_end(key)
            return packet

    def put(self, key: str, packet: Packet) -> None:
        """Cache a packet, and evict the least recently used ones if there is no room.

        A packet larger than the whole cache is not cached.
        """
        with self._lock:
            if packet.nbytes > self._max:
                return
            if (old := self._packets.pop(key, None)) is not None:
                self._bytes -= old.nbytes
            self._packets[key] = packet
            self._bytes += packet.nbytes
            while self._bytes > self._max:
                self._bytes -= self._packets.popitem(last=False)[1].nbytes

    def forget(self, keys: Iterable[str] | None = None) -> None:
        """Drop the packets with the given keys, or all."""
        with self._lock:
            for key in list(self._packets) if keys is None else keys:
                if (packet := self._packets.pop(key, None)) is not None:
                    self._bytes -= packet.nbytes
