"""Finding known texts in a long one: every place where a stored chunk stands, in about a millisecond.

A text is a polynomial in an odd base modulo 2^64. The sums of all its beginnings give the hash of any stretch in one
subtraction and one product, so that all places of a prompt, and all lengths of the chunks that begin alike, are
compared by a few operations on arrays (Karp and Rabin 1987). Whoever uses a match compares the text itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHORTEST", "Match", "TextFinder"]

SHORTEST = 16
"""Characters by which the beginning of a chunk is known; shorter texts are not found."""
WIDTHS = (SHORTEST, 64)
"""Chunks are looked for by their first characters: the shorter ones by 16, those of 64 or more by 64, so that many
that begin with the same rule, title or indentation are still told apart."""
SLOT_BITS = 22
"""Size of a table of beginnings: 4 MB, which a hundred thousand chunks fill to a fortieth."""
SLICE = 2**20
"""Stretches compared at a time, so that a prompt of nothing but dashes does not fill the memory."""

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


class _Beginnings:
    """Chunks by the hash of their first characters: at which places of a text one may begin, and of which lengths."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._heads = np.empty(0, np.uint64)  # in rising order, as the lengths: every pair once
        self._lengths = np.empty(0, np.int64)
        self._table = np.zeros(2**SLOT_BITS, bool)

    def set(self, heads: Numbers, lengths: NDArray[np.int64]) -> None:
        """Take the beginnings and lengths of all chunks."""
        order = np.lexsort((lengths, heads))
        heads, lengths = heads[order], lengths[order]
        new = np.ones(len(heads), bool)
        new[1:] = (heads[1:] != heads[:-1]) | (lengths[1:] != lengths[:-1])
        self._heads, self._lengths = heads[new], lengths[new]
        self._table = np.zeros(2**SLOT_BITS, bool)
        self._table[_slots(self._heads)] = True

    def stretches(self, text: _Text, size: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Give starts and stops in a text of `size` characters that may be chunks, some at a time."""
        places = np.arange(max(0, size - self._width + 1))
        heads = text.stretches(places, places + self._width)
        places = np.flatnonzero(self._table[_slots(heads)])
        low = np.searchsorted(self._heads, heads[places], "left")
        counts = np.searchsorted(self._heads, heads[places], "right") - low
        places, low, counts = places[counts > 0], low[counts > 0], counts[counts > 0]
        # Every place with every length of the chunks that begin as it does.
        ends = np.cumsum(counts)
        at = 0
        while at < len(places):
            to = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + SLICE, "right")))
            number = counts[at:to]
            starts = np.repeat(places[at:to], number)
            before = np.cumsum(number) - number
            entries = np.arange(number.sum()) + np.repeat(low[at:to] - before, number)
            stops = starts + self._lengths[entries]
            yield starts[stops <= size], stops[stops <= size]
            at = to


class TextFinder:
    """Texts by integer id. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads = {width: np.empty(0, np.uint64) for width in WIDTHS}  # in the order of the arrays below
        self._hashes = np.empty(0, np.uint64)  # in rising order
        self._lengths = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int64)
        self._beginnings: list[_Beginnings] = []

    def add(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Add texts, or replace those of the same id; those shorter than `SHORTEST` are never found."""
        self.remove(ids)
        long = [(id_, text) for id_, text in zip(ids, texts, strict=True) if len(text) >= SHORTEST]
        if not long:
            return
        hashes = np.empty((len(long), len(WIDTHS) + 1), np.uint64)
        for number, (_, text) in enumerate(long):
            ends = np.asarray([*(min(width, len(text)) for width in WIDTHS), len(text)])
            hashes[number] = _Text(text).stretches(np.zeros(len(ends), np.int64), ends)
        with self._lock:
            self._set(
                {w: np.concatenate((self._heads[w], hashes[:, column])) for column, w in enumerate(WIDTHS)},
                np.concatenate((self._hashes, hashes[:, -1])),
                np.concatenate((self._lengths, np.asarray([len(text) for _, text in long], dtype=np.int64))),
                np.concatenate((self._ids, np.asarray([id_ for id_, _ in long], dtype=np.int64))),
            )

    def remove(self, ids: Iterable[int]) -> None:
        """Remove texts; ids that are not there are ignored."""
        with self._lock:
            kept = ~np.isin(self._ids, np.asarray(sorted(ids), dtype=np.int64))
            if not kept.all():
                heads = {width: values[kept] for width, values in self._heads.items()}
                self._set(heads, self._hashes[kept], self._lengths[kept], self._ids[kept])

    def _set(
        self, heads: dict[int, Numbers], hashes: Numbers, lengths: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> None:
        order = np.lexsort((ids, hashes))
        self._heads = {width: values[order] for width, values in heads.items()}
        self._hashes, self._lengths, self._ids = hashes[order], lengths[order], ids[order]
        self._beginnings = []
        for width, longer in zip(WIDTHS, (*WIDTHS[1:], None), strict=True):
            chosen = (self._lengths >= width) & (self._lengths < (longer or np.inf))
            beginnings = _Beginnings(width)
            beginnings.set(self._heads[width][chosen], self._lengths[chosen])
            self._beginnings.append(beginnings)

    def find(self, text: str) -> list[Match]:
        """Find all texts that stand in a text, from left to right, the longest where several begin, none overlapping."""
        if len(text) < SHORTEST:
            return []
        with self._lock:
            hashes, ids, beginnings = self._hashes, self._ids, self._beginnings
        seen = _Text(text)
        matches: list[tuple[int, int, int]] = []
        for begins in beginnings:
            for starts, stops in begins.stretches(seen, len(text)):
                found = seen.stretches(starts, stops)
                at = np.minimum(np.searchsorted(hashes, found, "left"), max(0, len(hashes) - 1))
                same = hashes[at] == found if len(hashes) else np.zeros(0, bool)
                matches += zip(starts[same].tolist(), stops[same].tolist(), ids[at[same]].tolist(), strict=True)
        return _leftmost(matches)


def _leftmost(matches: Sequence[tuple[int, int, int]]) -> list[Match]:
    """Choose from (start, stop, id), from left to right, the longest first."""
    found: list[Match] = []
    for start, length, id_ in sorted((start, start - stop, id_) for start, stop, id_ in matches):
        if not found or start >= found[-1].stop:
            found.append(Match(start, start - length, id_))
    return found
