"""Several kinds of questions at once, from files and generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvpacket_rag.errors import InputError
from kvpacket_rag.training.samples.formats import load_samples
from kvpacket_rag.training.samples.sample import Sample, Split, take, with_distractors
from kvpacket_rag.training.samples.synthetic import GENERATORS, generate_samples

__all__ = ["Domain", "load_domains"]

CORPUS_PASSAGES = 8
"""Passages drawn for anchors of a domain's own text."""


@dataclass(frozen=True)
class Domain:
    """Samples of one kind."""

    name: str
    samples: tuple[Sample, ...]
    source: str
    """Where they come from: a description for reports and cards."""
    corpus: tuple[str, ...] = ()
    """Passages of the same source that belong to no question: what a user's own corpus is to an anchor."""

    def divide(self, last: int) -> tuple[Domain, Domain]:
        """Split off the last `last` samples, and leave the samples of their rows out of the first half.

        Raises `InputError` unless both halves have samples.
        """
        if not 0 < last < len(self.samples):
            raise InputError(
                f"{self.name} has {len(self.samples)} questions, of which {last} cannot be held out. Ask for more, or hold out fewer."
            )
        held = {sample.row for sample in self.samples[len(self.samples) - last :]}
        first = tuple(sample for sample in self.samples if sample.row not in held)
        if not first:
            raise InputError(f"All questions of {self.name} are about rows that are held out; hold out fewer.")
        return replace(self, samples=first), replace(self, samples=self.samples[len(self.samples) - last :])


def load_domains(
    files: Sequence[str | Path], kinds: Sequence[str], *, n: int, k: int, split: Split | str, seed: int
) -> list[Domain]:
    """Draw `n` samples of each kind: of the next file for a file's format, made up for a generator.

    Raises `InputError` if files and formats do not match, or there is no such split.
    """
    wanted = [kind for kind in kinds if kind not in GENERATORS]
    if len(wanted) != len(files):
        raise InputError(
            f"Give one --format for each --data file, in the same order: got {len(files)} files and the formats {list(wanted)}."
        )
    if n < 1 or k < 1:
        raise InputError(f"n and k must be at least 1; got {n} and {k}.")
    if split not in tuple(Split):
        raise InputError(f"The split must be one of {', '.join(Split)}; got {split!r}.")
    remaining = iter(files)
    domains: list[Domain] = []
    for kind in kinds:
        if kind in GENERATORS:
            # Drawn from other seeds for each split.
            samples = generate_samples(kind, n, k, f"{split}:{seed}")
            others = generate_samples(kind, CORPUS_PASSAGES, 1, f"corpus:{split}:{seed}")
            corpus = tuple(sample.passages[0] for sample in others)
            source, name = f"made up, split {split}, seed {seed}", kind
        else:
            path = next(remaining)
            pool = load_samples(path, kind, Split(split))
            samples = with_distractors(take(pool, n, seed), pool, k, seed)
            corpus = _other_passages(load_samples(path, kind), samples, Split(split), seed)
            source, name = f"{Path(path).name}, split {split}, seed {seed}", kind
        if any(domain.name == name for domain in domains):
            name = f"{name}-{len(domains)}"
        domains.append(Domain(name, tuple(samples), source, corpus))
    return domains


def _other_passages(
    everything: Sequence[Sample], samples: Sequence[Sample], split: Split, seed: int
) -> tuple[str, ...]:
    """Draw passages of rows that none of the samples is of, and that none of them has; rows of the other split first."""
    rows = {sample.row for sample in samples}
    used = {passage for sample in samples for passage in sample.passages}
    rng = random.Random(f"corpus:{seed}")  # noqa: S311 - a draw that can be repeated
    # Drawn before leaving out, so that asking more questions of a split changes nothing.
    drawn = sorted(rng.sample(everything, len(everything)), key=lambda sample: split.holds(sample.row))
    others = dict.fromkeys(text for sample in drawn if sample.row not in rows for text in sample.passages[-1:])
    return tuple(text for text in others if text not in used)[:CORPUS_PASSAGES]
