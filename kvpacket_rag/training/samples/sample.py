"""Samples: questions with their passages and known answers. Also splits, random draws and distractors."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Sample", "Split", "contains", "take", "with_distractors", "words"]


HELD_OUT_EVERY = 3
"""One row in three is held out. See `Split`."""


@dataclass(frozen=True)
class Sample:
    """A question, the passages that belong to it, and the answers that count as correct."""

    question: str
    answers: tuple[str, ...]
    """Empty if no answer is known."""
    passages: tuple[str, ...]
    """The passages given with the question; `with_distractors` adds others."""
    row: int
    """Number of the row (for SQuAD: of the paragraph) in its file. It decides to which split the sample belongs."""
    gold: int = 0
    """How many passages, counted from the first, are known to be needed for the answer; 0 if that is not known."""
    complete: bool = False
    """Whether the passages are complete, so that no distractors are added. This is the case for generated profiles."""


class Split(StrEnum):
    """The rows of a file to use. A row is never in both the train and the test split."""

    TRAIN = "train"
    """Two of every three rows."""
    TEST = "test"
    """Every third row."""
    ALL = "all"

    def holds(self, row: int) -> bool:
        """Return whether row number `row` belongs to the split."""
        held_out = row % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self is Split.ALL or held_out == (self is Split.TEST)


def take(samples: Sequence[Sample], n: int, seed: int) -> list[Sample]:
    """Draw `n` samples at random, from as many rows as possible. Return fewer if there are fewer samples."""
    rng = random.Random(seed)  # noqa: S311 - a draw that can be repeated
    by_row: dict[int, list[Sample]] = {}
    for sample in rng.sample(samples, len(samples)):
        by_row.setdefault(sample.row, []).append(sample)
    chosen: list[Sample] = []
    turn = 0
    while len(chosen) < min(n, len(samples)):
        chosen += [group[turn] for group in by_row.values() if len(group) > turn]
        turn += 1
    return chosen[:n]


def with_distractors(samples: Sequence[Sample], pool: Sequence[Sample], k: int, seed: int) -> list[Sample]:
    """Fill each sample up to at least `k` passages: first its own, then passages from other rows of `pool`."""
    passages = sorted({(sample.row, passage) for sample in pool for passage in sample.passages})
    filled = []
    for number, sample in enumerate(samples):
        missing = 0 if sample.complete else max(0, k - len(sample.passages))
        if not missing:
            filled.append(sample)
            continue
        rng = random.Random(f"{seed}:{number}")  # noqa: S311
        others = list(
            dict.fromkeys(text for row, text in passages if row != sample.row and text not in sample.passages)
        )
        filled.append(replace(sample, passages=sample.passages + tuple(rng.sample(others, min(missing, len(others))))))
    return filled


def words(text: str) -> list[str]:
    """Return the words of a text as SQuAD compares them: in lower case, without punctuation and articles.

    Unlike in SQuAD, a hyphen separates words.
    """
    text = "".join(" " if c in "-–—" else c for c in text.lower())
    text = "".join(c for c in text if c not in string.punctuation and c not in "“”‘’")
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def contains(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the text contains one of the answers as whole words, else 0."""
    found = f" {' '.join(words(text))} "
    return float(any(f" {' '.join(words(answer))} " in found for answer in answers if words(answer)))
