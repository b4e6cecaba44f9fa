"""Measures of how close an answer is to that of a full prefill. They are pure functions on logits and texts.

Divergence is measured token by token on the reference's own greedy answer. F1 and exact match are those of SQuAD
(arXiv 1606.05250, section 6): lower case, no punctuation, no articles. Unlike in SQuAD, a hyphen separates words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvpacket_rag.training.samples.sample import words

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

__all__ = ["Interval", "divergence", "exact_match", "f1", "interval", "kl_per_token", "ratio_interval"]

RESAMPLES = 2000


def kl_per_token(reference: Tensor, logits: Tensor) -> Tensor:
    """Return KL(reference ‖ method) in nats, [n], of next-token distributions given as logits [n, vocabulary]."""
    expected = reference.float().log_softmax(-1)
    return (expected.exp() * (expected - logits.float().log_softmax(-1))).sum(-1)


@dataclass(frozen=True)
class Divergence:
    """The distance of an answer's distributions from those of the reference."""

    kl: float
    """Mean KL per answer token, nats."""
    top1: float
    """Share of answer tokens with the same most likely token."""


def divergence(reference: Tensor, logits: Tensor) -> Divergence:
    """Compare two sets of logits [n, vocabulary] at the n tokens of the reference's answer."""
    same = reference.argmax(-1) == logits.argmax(-1)
    return Divergence(float(kl_per_token(reference, logits).mean()), float(same.float().mean()))


def f1(text: str, answers: Sequence[str]) -> float:
    """Return the harmonic mean of the precision and recall of words, for the answer that matches best."""
    return max((_f1(words(text), words(answer)) for answer in answers), default=0.0)


def _f1(found: list[str], expected: list[str]) -> float:
    common = sum((Counter(found) & Counter(expected)).values())
    return 2 * common / (len(found) + len(expected)) if common else 0.0


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the text equals one of the answers, else 0."""
    return float(any(words(text) == words(answer) for answer in answers))


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def _draws(arrays: Sequence[Array], groups: Sequence[str], seed: int) -> Iterator[tuple[Array, Array]]:
    """Resample aligned arrays together. Yield (means [arrays], resampled means [arrays, draws]) for each group."""
    names = np.asarray(groups if len(groups) else ["all"] * len(arrays[0]))
    rng = np.random.default_rng(seed)
    for name in dict.fromkeys(names.tolist()):
        parts = [array[names == name] for array in arrays]
        index = rng.integers(0, len(parts[0]), (RESAMPLES, len(parts[0])))
        yield np.array([part.mean() for part in parts]), np.array([part[index].mean(axis=1) for part in parts])


def interval(values: Sequence[float], groups: Sequence[str] = (), seed: int = 0) -> Interval:
    """Bootstrap the mean of `values`. With `groups`, bootstrap the mean over groups of the groups' means.

    From each group, as many values are drawn with replacement as it has (percentile bootstrap).
    """
    drawn = list(_draws([np.asarray(values, dtype=np.float64)], groups, seed))
    low, high = np.percentile(np.mean([draws[0] for _, draws in drawn], axis=0), [2.5, 97.5])
    return Interval(float(np.mean([means[0] for means, _ in drawn])), float(low), float(high))


def ratio_interval(
    values: Sequence[float], others: Sequence[float], groups: Sequence[str] = (), seed: int = 0
) -> Interval:
    """Bootstrap the mean of `values` divided by the mean of `others`.

    Values are drawn in pairs. With `groups`, means are taken over groups as in `interval`.
    """
    arrays = [np.asarray(part, dtype=np.float64) for part in (values, others)]
    drawn = list(_draws(arrays, groups, seed))
    means = np.mean([mean for mean, _ in drawn], axis=0)
    draws = np.mean([draw for _, draw in drawn], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.percentile(draws[0] / draws[1], [2.5, 97.5])
        return Interval(float(means[0] / means[1]), float(low), float(high))
