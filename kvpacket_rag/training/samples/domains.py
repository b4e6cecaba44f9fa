"""Domains: several kinds of questions, loaded together from files and generators."""

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
"""Number of passages that are drawn for anchors made of a domain's own text."""


@dataclass(frozen=True)
class Domain:
    """Samples of one kind."""

    name: str
    samples: tuple[Sample, ...]
    source: str
    """A description of where the samples come from, for reports and cards."""
    corpus: tuple[str, ...] = ()
    """Passages of the same source that belong to no question. Anchors use them like passages of a user's own corpus."""

    def divide(self, last: int) -> tuple[Domain, Domain]:
        """Split off the last `last` samples, and leave all samples of the same rows out of the first part.

        Raises `InputError` unless both parts have samples.
        """
        if not 0 < last < len(self.samples):
            raise InputError(
                f"{self.name} has {len(self.samples)} questions. The number held out must be at least 1 and below that; got {last}. Ask for more questions, or hold out fewer."
            )
        held = {sample.row for sample in self.samples[len(self.samples) - last :]}
        first = tuple(sample for sample in self.samples if sample.row not in held)
        if not first:
            raise InputError(
                f"All questions of {self.name} are about rows that are held out. Hold out fewer questions."
            )
        return replace(self, samples=first), replace(self, samples=self.samples[len(self.samples) - last :])


def load_domains(
    files: Sequence[str | Path], kinds: Sequence[str], *, n: int, k: int, split: Split | str, seed: int
) -> list[Domain]:
    """Return a domain of `n` samples for each kind. A kind is a file format, which reads the next file, or a generator.

    Raises `InputError` if files and formats do not match, or if there is no such split.
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
            # Each split draws from its own seeds.
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
    """Draw passages that no sample has, from rows without a sample. Rows of the other split come first."""
    rows = {sample.row for sample in samples}
    used = {passage for sample in samples for passage in sample.passages}
    rng = random.Random(f"corpus:{seed}")  # noqa: S311 - a draw that can be repeated
    # Draw before filtering, so that the draw does not depend on the number of questions from a split.
    drawn = sorted(rng.sample(everything, len(everything)), key=lambda sample: split.holds(sample.row))
    others = dict.fromkeys(text for sample in drawn if sample.row not in rows for text in sample.passages[-1:])
    return tuple(text for text in others if text not in used)[:CORPUS_PASSAGES]
