"""Samples as token ids. Each passage is cut to one chunk, and the prompt is built around the shuffled chunks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvpacket_rag.corpus.document import Chunk, Document
from kvpacket_rag.corpus.splitter import Splitter
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.fingerprint import canonical, short_hash
from kvpacket_rag.training.samples.sample import Sample, contains

__all__ = ["Question", "Questions"]


@dataclass(frozen=True)
class Question:
    """Token ids of a prompt, divided into prefix, chunks and tail."""

    prefix: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Hash of all token ids."""
        return short_hash(canonical([self.prefix, self.chunks, self.tail]))

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids, in the order in which a full prefill computes them."""
        return (*self.prefix, *(token for chunk in self.chunks for token in chunk), *self.tail)

    @property
    def length(self) -> int:
        """Number of all tokens."""
        return len(self.prefix) + sum(map(len, self.chunks)) + len(self.tail)


class Questions:
    """Turns samples into prompts for one model."""

    def __init__(self, model: Engine, chunk_tokens: int) -> None:
        """chunk_tokens: the maximum number of tokens in a chunk, including its separator."""
        self._model = model
        room = chunk_tokens - len(model.text.separator)
        if room < 1:
            raise InputError(f"A chunk needs room for text; chunk_tokens must be more than {chunk_tokens}.")
        self._splitter = Splitter(model, room)

    def chunk(self, passage: str, answers: Sequence[str]) -> tuple[int, ...]:
        """Return the token ids of the longest piece of a passage that contains an answer.

        If no piece contains an answer, the longer of the first two pieces is used, because the first may be a title.
        """
        return self._piece(passage, answers).token_ids

    def cut(self, passage: str) -> str:
        """Return the text of the longer of a passage's first two pieces."""
        return self._piece(passage, ()).text

    def _piece(self, passage: str, answers: Sequence[str]) -> Chunk:
        pieces = self._splitter.split(Document(passage))
        holding = [piece for piece in pieces if contains(piece.text, answers)]
        return max(holding or pieces[:2], key=lambda piece: len(piece.token_ids))

    def make(self, sample: Sample, k: int, seed: str) -> Question:
        """Build a prompt from `k` of the sample's passages in random order.

        Gold passages are chosen first, then passages that contain an answer.
        """

        def rank(number: int) -> int:
            return 0 if number < sample.gold else 1 if contains(sample.passages[number], sample.answers) else 2

        chosen = sorted(range(len(sample.passages)), key=rank)[:k]
        passages = [sample.passages[number] for number in chosen]
        random.Random(seed).shuffle(passages)  # noqa: S311 - an order that can be repeated
        prompt = self._model.text.prompt(sample.question)
        chunks = tuple(self.chunk(passage, sample.answers) for passage in passages)
        return Question(prompt.prefix, chunks, prompt.tail)
