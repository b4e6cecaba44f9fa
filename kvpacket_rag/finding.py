"""Finding known texts in a long one: every place where a stored chunk stands, in about a millisecond.

A text is a polynomial in an odd base modulo 2^64. The sums of all its beginnings give the hash of any stretch in one
subtraction and one product, so that all places of a prompt, and all lengths of the chunks that begin alike, are
compared by a few operations on arrays (Karp and Rabin 1987). Whoever uses a match compares the text itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHORTEST", "Match", "TextFinder"]

SHORTEST = 16
"""Characters by which the beginning of a chunk is known; shorter texts are not found."""
SLOT_BITS = 22
"""Size of the table of beginnings: 4 MB, which a hundred thousand chunks fill to a fortieth."""

BASE = 0x9E3779B97F4A7C15
INVERSE = pow(BASE, -1, 2**64)
MIX = 0xD6E8FEB86659FD93

Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Match:
    """Characters [start, stop) of a text hash like the text of `id`."""

    start: int
    stop: int
    id: int


class _Text:
    """Hashes of all stretches of one text."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
        powers = np.full(len(codes) + 1, BASE, dtype=np.uint64)
        powers[0] = 1
        powers = np.multiply.accumulate(powers)
        self._sums: Numbers = np.concatenate((np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1], dtype=np.uint64)))
        inverses = np.full(len(codes) + 1, INVERSE, dtype=np.uint64)
        inverses[0] = 1
        self._inverses: Numbers = np.multiply.accumulate(inverses)

    def stretches(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Numbers:
        """Hashes of stretches [start, stop), given as arrays."""
        hashes: Numbers = (self._sums[stops] - self._sums[starts]) * self._inverses[starts]
        return hashes


def _slots(hashes: Numbers) -> NDArray[np.int64]:
    """Places of beginnings in the table: their upper bits after mixing."""
    mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(MIX)
    return (mixed >> np.uint64(64 - SLOT_BITS)).astype(np.int64)


class TextFinder:
    """Texts by integer id. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads = np.empty(0, np.uint64)  # of the first characters, in rising order, as the arrays below
        self._hashes = np.empty(0, np.uint64)
        self._lengths = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int64)
        self._table = np.zeros(2**SLOT_BITS, bool)

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the texts that can be found."""
        with self._lock:
            return frozenset(self._ids.tolist())

    def add(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Add texts; those shorter than `SHORTEST` are kept by id and never found."""
        if not ids:
            return
        heads, hashes = np.empty(len(ids), np.uint64), np.empty(len(ids), np.uint64)
        lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
        for number, text in enumerate(texts):
            ends = np.asarray([min(SHORTEST, len(text)), len(text)])
            heads[number], hashes[number] = _Text(text).stretches(np.zeros(2, np.int64), ends)
        with self._lock:
            self._set(
                np.concatenate((self._heads, heads)), np.concatenate((self._hashes, hashes)),
                np.concatenate((self._lengths, lengths)), np.concatenate((self._ids, np.asarray(ids, dtype=np.int64))),
            )  # fmt: skip

    def remove(self, ids: Iterable[int]) -> None:
        """Remove texts; ids that are not there are ignored."""
        with self._lock:
            kept = ~np.isin(self._ids, np.asarray(sorted(ids), dtype=np.int64))
            if not kept.all():
                self._set(self._heads[kept], self._hashes[kept], self._lengths[kept], self._ids[kept])

    def _set(self, heads: Numbers, hashes: Numbers, lengths: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        order = np.lexsort((ids, heads))
        self._heads, self._hashes = heads[order], hashes[order]
        self._lengths, self._ids = lengths[order], ids[order]
        table = np.zeros(2**SLOT_BITS, bool)
        table[_slots(self._heads[self._lengths >= SHORTEST])] = True
        self._table = table

    def find(self, text: str) -> list[Match]:
        """Find all texts that stand in a text, from left to right, the longest where several begin, none overlapping."""
        places = len(text) - SHORTEST + 1
        if places <= 0:
            return []
        with self._lock:
            heads, hashes, lengths, ids, table = self._heads, self._hashes, self._lengths, self._ids, self._table
        seen = _Text(text)
        starts = np.arange(places)
        begins = seen.stretches(starts, starts + SHORTEST)
        starts = np.flatnonzero(table[_slots(begins)])
        low = np.searchsorted(heads, begins[starts], "left")
        counts = np.searchsorted(heads, begins[starts], "right") - low
        # Every place with every chunk that begins as it does.
        starts = np.repeat(starts, counts)
        entries = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
        stops = starts + lengths[entries]
        fits = (stops <= len(text)) & (lengths[entries] >= SHORTEST)
        starts, stops, entries = starts[fits], stops[fits], entries[fits]
        same = seen.stretches(starts, stops) == hashes[entries]
        return _leftmost(starts[same].tolist(), stops[same].tolist(), ids[entries[same]].tolist())


def _leftmost(starts: Sequence[int], stops: Sequence[int], ids: Sequence[int]) -> list[Match]:
    """Choose from left to right, the longest and oldest first."""
    found: list[Match] = []
    for start, length, id_ in sorted(
        (start, start - stop, id_) for start, stop, id_ in zip(starts, stops, ids, strict=True)
    ):
        if not found or start >= found[-1].stop:
            found.append(Match(start, start - length, id_))
    return found
