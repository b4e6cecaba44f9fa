"""Comparison of times on a noisy machine.

The ways to compare take turns within one run, and ratios are computed within each round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvpacket_rag.errors import check_count

__all__ = ["Progress", "Spread", "Way", "interleaved", "ratio"]

Progress = Callable[[int, int], None]
"""Called with (measurements done, measurements in all)."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of several measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise measurements."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Way:
    """One side of a comparison."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Prepares each run. It is not timed."""


def interleaved(
    ways: Mapping[str, Way],
    repeats: int,
    *,
    synchronize: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of each way in each of `repeats` rounds, after one warm-up round that is not counted.

    Each round has another order of the ways. synchronize: waits for the device, so that the measured times are correct.
    Raises `InputError` for repeats below 1.
    """
    check_count(repeats, "repeats")
    names, draw = list(ways), random.Random(0)  # noqa: S311 - orders that can be repeated
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, repeats):
        for name in draw.sample(names, len(names)):
            ways[name].before()
            synchronize()
            start = time.perf_counter()
            ways[name].run()
            synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
        if progress is not None and turn >= 0:
            progress(turn + 1, repeats)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], one: str, other: str) -> Spread:
    """Return the ratio of `one` to `other`, computed within each round."""
    return Spread.of([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])
