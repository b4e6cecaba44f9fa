"""Lessons from which an adapter learns: prompts with the answers and distributions of full prefill, stored on disk.

The teacher answers a lesson when it is first needed. Training therefore starts at once and can be interrupted, and a
second epoch does not run the teacher again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvpacket_rag.engine.assembly import prefill
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.fingerprint import canonical
from kvpacket_rag.training.loss import TopLogits, top_logits
from kvpacket_rag.training.samples.prompts import Question, Questions
from kvpacket_rag.training.samples.sample import Sample
from kvpacket_rag.training.teacher import continue_greedily

__all__ = ["Lesson", "Lessons", "TaughtLesson", "Variety", "draw_lessons"]


ROOM = 256
"""Number of positions reserved for the adapter and the answer."""


@dataclass(frozen=True)
class Variety:
    """The sizes between which training prompts vary."""

    k: tuple[int, ...] = (2, 3, 4, 5)
    """Numbers of chunks in a prompt."""
    chunk_tokens: tuple[int, ...] = (96, 128, 160, 256)
    """Maximum lengths of a chunk, in tokens."""

    def __post_init__(self) -> None:
        if not self.k or not self.chunk_tokens or min(*self.k, *self.chunk_tokens) < 1:
            raise InputError(
                f"Prompts need at least 1 chunk of at least 1 token; got numbers of chunks {list(self.k)} and lengths "
                f"{list(self.chunk_tokens)}."
            )


@dataclass(frozen=True)
class Lesson:
    """A prompt of a domain, without the answer of the teacher."""

    domain: str
    question: Question


@dataclass(frozen=True, eq=False)
class TaughtLesson:
    """A prompt with the greedy answer of a full prefill, and its distributions at the answer and the question."""

    lesson: Lesson
    answer: tuple[int, ...]
    at_answer: TopLogits
    """The distributions at the n answer tokens."""
    at_tail: TopLogits
    """The distributions at all tokens of the tail except the last, which predicts the first answer token."""


def draw_lessons(
    model: Engine, domains: Sequence[tuple[str, Sequence[Sample]]], variety: Variety, seed: int
) -> list[Lesson]:
    """Build a prompt from every sample, with the number and the length of its chunks drawn from `variety`.

    The domains take turns. Prompts that do not fit the model's positions are left out.
    """
    cutters = {length: Questions(model, length) for length in variety.chunk_tokens}
    lessons: list[tuple[float, Lesson]] = []
    for name, samples in domains:
        for number, sample in enumerate(samples):
            rng = random.Random(f"{seed}:{name}:{number}")  # noqa: S311 - a draw that can be repeated
            k, length = rng.choice(variety.k), rng.choice(variety.chunk_tokens)
            question = cutters[length].make(sample, k, f"{seed}:{name}:{number}")
            if question.length + ROOM > model.max_positions:
                continue
            lessons.append(((number + rng.random()) / len(samples), Lesson(name, question)))
    return [lesson for _, lesson in sorted(lessons, key=lambda pair: pair[0])]


class Lessons:
    """Lessons by number. The teacher answers each lesson once, and the result is stored in a folder."""

    def __init__(self, model: Engine, lessons: Sequence[Lesson], folder: Path, *, answer_tokens: int) -> None:
        self._model, self._lessons, self._folder, self._most = model, lessons, folder, answer_tokens
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(self._lessons)

    @property
    def digest(self) -> str:
        """Hash of all prompts with their domains, in order, and of the model that teaches them."""
        names = [[lesson.domain, self._path(lesson).name] for lesson in self._lessons]
        return hashlib.sha256(canonical(names)).hexdigest()[:16]

    def lesson(self, number: int) -> Lesson:
        """Return a lesson without the answer of the teacher."""
        return self._lessons[number]

    def __getitem__(self, number: int) -> TaughtLesson:
        lesson = self._lessons[number]
        path = self._path(lesson)
        try:
            return self._read(lesson, path)
        except (FileNotFoundError, SafetensorError):  # not taught yet, or the file was cut off
            taught = self._teach(lesson)
            self.keep(taught)
            return taught

    def keep(self, taught: TaughtLesson) -> None:
        """Store a taught lesson in the folder, where it is found again."""
        self._write(taught, self._path(taught.lesson))

    def _path(self, lesson: Lesson) -> Path:
        question = lesson.question
        content = [self._model.weights_hash, str(self._model.dtype), self._most, *map(list, question.chunks)]
        key = hashlib.sha256(canonical([*content, list(question.prefix), list(question.tail)])).hexdigest()[:24]
        return self._folder / f"{key}.safetensors"

    def _teach(self, lesson: Lesson) -> TaughtLesson:
        model, question = self._model, lesson.question
        with torch.no_grad():
            context, _ = prefill(model, question.prefix, question.chunks, (), room=len(question.tail) + self._most)
            tail = model.logits(context.cache, question.tail, keep=len(question.tail))[0]
            ids, seen = continue_greedily(model, context.cache, tail[-1], position=question.length, most=self._most)
        return TaughtLesson(lesson, tuple(ids), top_logits(torch.stack(seen)), top_logits(tail[:-1]))

    @staticmethod
    def _write(taught: TaughtLesson, path: Path) -> None:
        tensors = {"answer": torch.tensor(taught.answer)}
        for name, top in (("answer", taught.at_answer), ("tail", taught.at_tail)):
            tensors |= {f"{name}_ids": top.ids.cpu(), f"{name}_values": top.log_probabilities.cpu()}
        part = path.with_suffix(".part")
        save_file(tensors, part)
        part.replace(path)

    @staticmethod
    def _read(lesson: Lesson, path: Path) -> TaughtLesson:
        with safe_open(path, framework="pt") as file:
            tops = [
                TopLogits(file.get_tensor(f"{name}_ids"), file.get_tensor(f"{name}_values"))
                for name in ("answer", "tail")
            ]
            return TaughtLesson(lesson, tuple(file.get_tensor("answer").tolist()), *tops)
