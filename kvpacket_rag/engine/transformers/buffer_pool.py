"""Memory of contexts, used again when a context is no longer needed.

A new large piece of memory costs an operating system a fault per page at its first touch: for a context of 4,096 tokens that
is longer than copying all packets into it. On a GPU torch's own allocator already keeps memory.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch import Tensor

__all__ = ["BufferPool", "Lease"]

KEPT = 2
"""Free pieces kept, at most: the largest."""
KEPT_BYTES = 1 << 30
"""Their bytes together, at most."""
ROOMY = 4
"""How many times larger than asked for a piece may be."""
STEP = 1 << 22
"""Pieces are multiples of this many bytes, so that contexts of about a length share one; what is never touched costs nothing."""


class Lease:
    """A piece of memory for as long as this object lives; whoever shows it to others keeps the lease with it."""

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._at = memory, 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next part of it, as an uninitialised tensor."""
        size = torch.Size(shape).numel() * dtype.itemsize
        part = self._memory[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += size
        return part


class BufferPool:
    """Gives out memory and takes it back when its lease ends. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # a lease may end, by garbage collection, within `lease` itself

    def lease(self, size: int) -> Lease:
        """Give `size` bytes of a processor's memory, uninitialised."""
        with self._lock:
            # A small context does not hold on to the memory of a large one, which the next large one would miss.
            fitting = [piece for piece in self._free if size <= len(piece) <= ROOMY * max(size, STEP)]
            piece = min(fitting, key=len) if fitting else None
            if piece is not None:
                self._free = [other for other in self._free if other is not piece]
        if piece is None:
            piece = torch.empty(-(-size // STEP) * STEP, dtype=torch.uint8, device="cpu")
        lease = Lease(piece)
        weakref.finalize(lease, self._give_back, piece).atexit = False
        return lease

    def _give_back(self, piece: Tensor) -> None:
        with self._lock:
            self._free = sorted([*self._free, piece], key=len)[-KEPT:]
            while sum(map(len, self._free)) > KEPT_BYTES:
                del self._free[0]
