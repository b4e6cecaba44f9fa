"""A pool that reuses the memory of contexts that are no longer needed.

The first access to each page of newly allocated memory causes a page fault. For a context of 4,096 tokens, the page
faults take longer than copying all packets into it. On a GPU, torch's own allocator already reuses memory.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch import Tensor

__all__ = ["BufferPool", "Lease"]

KEPT = 2
"""Maximum number of free pieces in the pool. It keeps the largest ones."""
KEPT_BYTES = 1 << 30
"""Maximum size of all free pieces together, in bytes."""
ROOMY = 4
"""Maximum ratio of the size of a reused piece to the requested size."""
STEP = 1 << 22
"""Piece sizes are multiples of this many bytes, so that contexts of similar length can use the same piece. Pages that
are never touched cost nothing."""


class Lease:
    """A piece of memory, reserved while this object exists. Code that shares the memory must also share the lease."""

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._at = memory, 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next part of the memory as an uninitialised tensor."""
        size = torch.Size(shape).numel() * dtype.itemsize
        part = self._memory[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += size
        return part


class BufferPool:
    """Leases memory and reclaims it when the lease ends. Several threads may use one pool."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # re-entrant: garbage collection may end a lease while `lease` runs

    def lease(self, size: int) -> Lease:
        """Return a lease of `size` bytes of CPU memory. The memory is not initialised."""
        with self._lock:
            # A small context does not get the memory of a large one, because the next large context would need it.
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
