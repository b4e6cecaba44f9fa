"""The choice of a store's anchor.

Several anchors are tried on questions about the store's documents. The one closest to full prefill is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvpacket_rag.bench.measures import Interval, divergence, interval
from kvpacket_rag.engine.anchors import anchor_ids, encode_in_place
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.store.document_store import DocumentStore
from kvpacket_rag.training.samples.prompts import Question
from kvpacket_rag.training.samples.sample import Sample
from kvpacket_rag.training.teacher import forced_logits, teach

__all__ = ["Candidate", "TuneReport", "candidates", "tune_anchor"]

CORPUS_SIZES = (1, 2, 3)
"""Numbers of passages from the corpus that are tried as an anchor."""
ANSWER_TOKENS = 24


@dataclass(frozen=True)
class Candidate:
    """An anchor to try."""

    name: str
    anchor: Anchor
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class TuneReport:
    """The results of anchor tuning."""

    kl: Mapping[str, Interval]
    """KL to full prefill per answer token, by the name of the candidate."""
    best: Candidate
    """The candidate closest to full prefill."""
    questions: int
    """Number of questions measured."""


def candidates(store: DocumentStore, seed: int) -> list[Candidate]:
    """Return the anchors to try.

    They are the neutral passages, the adapter's anchor if there is one, the store's present anchor, and passages of the
    corpus.
    """
    settings = store.settings
    found = [Candidate("passages", Anchor.PASSAGES)]
    if len(store.model.adapter.anchor):
        found.append(Candidate("trained", Anchor.TRAINED))
    if settings.anchor and settings.anchor not in [candidate.anchor for candidate in found]:
        found.append(Candidate("present", Anchor(settings.anchor), settings.anchor_texts))
    # Use the longest chunk of each document, because the last one often has only a few words.
    by_document = {c.document: c.text for c in sorted(store.chunks(), key=lambda chunk: len(chunk.token_ids))}
    names = sorted(by_document)
    chosen = random.Random(seed).sample(names, min(len(names), max(CORPUS_SIZES)))  # noqa: S311 - repeatable, no secret
    texts = tuple(by_document[name] for name in chosen)
    return found + [Candidate(f"corpus-{n}", Anchor.CORPUS, texts[:n]) for n in CORPUS_SIZES if n <= len(texts)]


def tune_anchor(
    store: DocumentStore,
    samples: Sequence[Sample],
    tried: Sequence[Candidate],
    progress: Callable[[int, int], None] | None = None,
) -> TuneReport:
    """Measure every candidate on the samples. The store is not changed.

    Passages are placed in the order in which search results are placed.
    progress: called with (questions done, number of questions). Raises `InputError` without samples or candidates.
    """
    if not samples or not tried:
        raise InputError(f"Tuning needs questions and candidates; got {len(samples)} and {len(tried)}.")
    model = store.model
    first = anchor_ids(model, Anchor(store.settings.first_anchor or Anchor.OPENING))
    later = {candidate.name: anchor_ids(model, candidate.anchor, candidate.texts) for candidate in tried}
    found: dict[str, list[float]] = {candidate.name: [] for candidate in tried}
    for done, sample in enumerate(samples, start=1):
        question = _question(model, sample)
        taught = teach(model, question, most=ANSWER_TOKENS)
        for candidate in tried:
            packets = encode_in_place(model, question.chunks, first=first, later=later[candidate.name])
            logits = forced_logits(model, question, packets, taught.answer)[-len(taught.answer) :]
            found[candidate.name].append(divergence(taught.logits, logits).kl)
        if progress is not None:
            progress(done, len(samples))
    kl = {name: interval(values) for name, values in found.items()}
    best = min(tried, key=lambda candidate: kl[candidate.name].mean)
    return TuneReport(kl, best, len(samples))


def _question(model: Engine, sample: Sample) -> Question:
    """Build the prompt with the best passage last, as `RAG` does."""
    prompt = model.text.prompt(sample.question)
    chunks = tuple(model.text.plain(text) + model.text.separator for text in reversed(sample.passages))
    return Question(prompt.prefix, chunks, prompt.tail)
