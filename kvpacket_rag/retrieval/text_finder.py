"""Finds known texts in a long text: every position of a stored chunk, in about a millisecond.

The method is a rolling hash (Karp and Rabin 1987). A text is treated as a polynomial in an odd base modulo 2^64. With
its prefix sums, the hash of any substring takes one subtraction and one multiplication. A few array operations
therefore compare all positions of a prompt with all lengths of the chunks that begin alike. Equal hashes do not prove
equal texts, so the caller must compare the text of each match.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHORTEST", "Match", "TextFinder"]

SHORTEST = 16
"""Number of characters by which the beginning of a chunk is recognised. Shorter texts are not found."""
WIDTHS = (SHORTEST, 64)
"""Numbers of first characters by which chunks are looked up: 16 for shorter chunks, 64 for chunks of 64 or more.

The longer beginning distinguishes chunks that start with the same rule, title or indentation.
"""
SLOT_BITS = 22
"""Bits of a table position: a table of beginnings takes 4 MB, and a hundred thousand chunks fill a fortieth of it."""
SLICE = 2**20
"""Number of substrings compared at a time. It prevents a prompt of dashes only from filling the memory."""

BASE = 0x9E3779B97F4A7C15
INVERSE = pow(BASE, -1, 2**64)
MIX = 0xD6E8FEB86659FD93

Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Match:
    """Characters [start, stop) of a text that have the same hash as the text of `id`."""

    start: int
    stop: int
    id: int


class _Text:
    """Hashes of all substrings of one text."""

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
        """Return the hashes of substrings [start, stop), given as arrays."""
        hashes: Numbers = (self._sums[stops] - self._sums[starts]) * self._inverses[starts]
        return hashes


def _slots(hashes: Numbers) -> NDArray[np.int64]:
    """Return the table positions of beginnings: the upper bits of their hashes after mixing."""
    mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(MIX)
    return (mixed >> np.uint64(64 - SLOT_BITS)).astype(np.int64)


class _Beginnings:
    """Chunks by the hash of their first characters. Finds where chunks may begin in a text, and their lengths."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._heads = np.empty(0, np.uint64)  # sorted by head, then by length; each pair occurs once
        self._lengths = np.empty(0, np.int64)
        self._table = np.zeros(2**SLOT_BITS, bool)

    def set(self, heads: Numbers, lengths: NDArray[np.int64]) -> None:
        """Set the beginnings and lengths of all chunks."""
        order = np.lexsort((lengths, heads))
        heads, lengths = heads[order], lengths[order]
        new = np.ones(len(heads), bool)
        new[1:] = (heads[1:] != heads[:-1]) | (lengths[1:] != lengths[:-1])
        self._heads, self._lengths = heads[new], lengths[new]
        self._table = np.zeros(2**SLOT_BITS, bool)
        self._table[_slots(self._heads)] = True

    def stretches(self, text: _Text, size: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield, in batches, starts and stops of substrings that may be chunks in a text of `size` characters."""
        places = np.arange(max(0, size - self._width + 1))
        heads = text.stretches(places, places + self._width)
        places = np.flatnonzero(self._table[_slots(heads)])
        low = np.searchsorted(self._heads, heads[places], "left")
        counts = np.searchsorted(self._heads, heads[places], "right") - low
        places, low, counts = places[counts > 0], low[counts > 0], counts[counts > 0]
        # Combine every position with every length of the chunks that begin like the text there.
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
    """Finds texts that were added by integer id. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads = {width: np.empty(0, np.uint64) for width in WIDTHS}  # in the same order as the arrays below
        self._hashes = np.empty(0, np.uint64)  # in ascending order
        self._lengths = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int64)
        self._beginnings: list[_Beginnings] = []

    def add(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Add texts, or replace those with the same id. Texts shorter than `SHORTEST` are never found."""
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
        """Remove texts. Unknown ids are ignored."""
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
        """Find the known texts that occur in a text, from left to right.

        Matches do not overlap. If several texts begin at one position, the longest is chosen.
        """
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
    """Return matches that do not overlap, chosen from (start, stop, id) from left to right, the longest first."""
    found: list[Match] = []
    for start, length, id_ in sorted((start, start - stop, id_) for start, stop, id_ in matches):
        if not found or start >= found[-1].stop:
            found.append(Match(start, start - length, id_))
    return found
