"""Distillation: trains an adapter so that the frozen model answers from packets as it does from a full prefill.

The student uses the same `encode` and `assemble` as answering does. Only the adapter's embeddings are trained
(KV Packet, arXiv 2604.13226, section 3). The loss is the KL over the greedy answer of the teacher. The KL over the
question's tokens is added with a small weight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter, AdapterCard
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.training.checkpoint import Checkpoint, load_checkpoint, moments, restore, save_checkpoint
from kvpacket_rag.training.config import DistillConfig
from kvpacket_rag.training.gate import Measured, means, passes, standard_errors
from kvpacket_rag.training.lessons import Lesson, Lessons, TaughtLesson
from kvpacket_rag.training.loss import top_kl
from kvpacket_rag.training.parts import Start, spread, start_values
from kvpacket_rag.training.student import packets_of, student_logits

__all__ = ["DistillConfig", "Progress", "Trained", "distill"]

logger = logging.getLogger(__name__)

ProgressReport = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """The progress of a training run."""

    step: int
    steps: int
    loss: float
    """The loss of the last step."""
    fidelity: float | None
    """KL per answer token on the held-out lessons, averaged over domains. None if this step did not measure it."""
    best: float | None


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a training run."""

    adapter: Adapter
    """The adapter with the parts of the best measurement."""
    accepted: bool
    """Whether the adapter passes the gate: on the held-out lessons of every domain, it must beat the baseline by more
    than one standard error of the differences."""
    without: Mapping[str, float]
    """KL per answer token of the baseline, by domain: the model's adapter if `start` is present, else no adapter."""
    best: Mapping[str, float]
    """KL per answer token with the trained adapter, by domain."""
    errors: Mapping[str, float]
    """Standard errors of the mean differences between `without` and `best`, by domain."""
    history: Sequence[Mapping[str, Any]]
    """One entry per step: the loss, and the KL on the held-out lessons if the step measured it."""


class _Run:
    """One training run with its parameters, optimiser and history."""

    def __init__(
        self,
        model: PacketModel,
        lessons: Lessons,
        held_out: Lessons,
        config: DistillConfig,
        folder: Path,
        initial: Adapter | None,
    ) -> None:
        self.lessons, self.held_out, self.config, self.folder = lessons, held_out, config, folder
        self.before = model.adapter if config.start is Start.PRESENT else None
        """The adapter that the run has to beat. None means no adapter."""
        start = start_values(model.with_adapter(initial or model.adapter), config.sizes, config.start, config.seed)
        model = self.model = model.with_adapter(None)
        self.parts = {name: value.clone().requires_grad_(len(value) > 0) for name, value in start.items()}
        self.learned = {name: part for name, part in self.parts.items() if part.requires_grad}
        self.unit = spread(self.model)
        self.optimiser = torch.optim.AdamW(self.learned.values(), lr=config.rate(0) * self.unit, weight_decay=0.0)
        self.best = {name: part.detach().clone() for name, part in self.parts.items()}
        self.history: list[dict[str, Any]] = []
        self.without: Measured = {}
        self.measured: list[Measured] = []
        self.started_with = {
            "format": 2,
            "model": model.weights_hash,
            "before": self.before.digest if self.before else "none",
            "initial": initial.digest if initial else "none",
            "config": asdict(config),
            "lessons": lessons.digest,
            "held_out": held_out.digest,
        }
        if (saved := load_checkpoint(folder, self.started_with)) is not None:
            restore(self.optimiser, self.learned, saved.tensors)
            self.best |= {name: saved.tensors[f"best/{name}"] for name in self.learned}
            self.history = saved.facts["history"]
            self.without, self.measured = saved.facts["without"], saved.facts["measured"]
            logger.info("Resuming at step %d of %d.", self.step, config.steps)

    @property
    def step(self) -> int:
        """Number of finished steps."""
        return len(self.history)

    def batch(self) -> list[int]:
        """Return the numbers of the next lessons. Each epoch uses every lesson once, in a new order."""
        size, count = self.config.batch, len(self.lessons)
        numbers = range(self.step * size, (self.step + 1) * size)
        orders = {
            epoch: torch.randperm(count, generator=torch.Generator().manual_seed(self.config.seed + epoch)).tolist()
            for epoch in {n // count for n in numbers}
        }
        return [orders[n // count][n % count] for n in numbers]

    def learn(self) -> float:
        """Run one optimiser step and return its loss."""
        config, numbers = self.config, self.batch()
        size = config.batch // config.accumulate
        total = 0.0
        for at in range(0, config.batch, size):
            loss = self._loss([self.lessons[n] for n in numbers[at : at + size]]) / config.accumulate
            if loss.requires_grad:  # prompts of one chunk do not train the anchor: it precedes only later chunks
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.learned.values(), config.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = config.rate(self.step) * self.unit
        self.optimiser.step()
        self.optimiser.zero_grad()
        return total

    def _loss(self, lessons: Sequence[TaughtLesson]) -> Tensor:
        adapted = self.model.with_adapter(Adapter.of(self.parts), differentiable=True)
        # Packets that do not depend on the trained parts are encoded without gradients.
        maker = adapted if any(len(self.parts[name]) for name in ("header", "trailer", "anchor")) else self.model
        packets = packets_of(maker, [taught.lesson for taught in lessons], self.config)
        losses = []
        for taught, made in zip(lessons, packets, strict=True):
            logits = student_logits(adapted, made, taught)
            tail = len(taught.lesson.question.tail) - 1
            loss = top_kl(taught.at_answer, logits[tail:]).mean()
            if self.config.tail_weight and tail:
                loss = loss + self.config.tail_weight * top_kl(taught.at_tail, logits[:tail]).mean()
            losses.append(loss * self._weight(taught.lesson.domain))
        return torch.stack(losses).mean()

    def _weight(self, domain: str) -> float:
        """Return a lesson's weight: higher if its domain diverged little at first, as the gate judges each domain."""
        without = means(self.without)
        if not self.config.balanced or not without.get(domain):
            return 1.0
        return fmean(without.values()) / without[domain]

    def measure(self, adapter: Adapter | None) -> Measured:
        """Return the KL per answer token of the held-out lessons, by domain."""
        model = self.model.with_adapter(adapter)
        by: dict[str, list[float]] = {}
        with torch.no_grad():
            for number in range(len(self.held_out)):
                taught = self.held_out[number]
                (packets,) = packets_of(model, [taught.lesson], self.config)
                logits = student_logits(model, packets, taught)[len(taught.lesson.question.tail) - 1 :]
                by.setdefault(taught.lesson.domain, []).append(float(top_kl(taught.at_answer, logits).mean()))
        return dict(sorted(by.items()))

    def consider(self) -> float:
        """Measure the current parts and keep them if they are the best so far. Return the mean over domains."""
        found = self.measure(Adapter.of({name: part.detach() for name, part in self.parts.items()}))
        self.measured.append(found)
        if self.best_measured is found:
            self.best = {name: part.detach().clone() for name, part in self.parts.items()}
        return fmean(means(found).values())

    @property
    def best_measured(self) -> Measured:
        """The measurement of the kept parts. Of equal measurements, it is the first."""
        return min(self.measured, key=self._rank)

    def _rank(self, found: Measured) -> tuple[bool, float]:
        """Return the sort key. Parts that pass the gate come before others, then the lowest mean comes first."""
        return not passes(self.without, found), fmean(means(found).values())

    def finished(self) -> bool:
        """Return whether all steps are done, or the last `patience` measurements brought no improvement."""
        late = len(self.measured) - 1 - self.measured.index(self.best_measured) if self.measured else 0
        return self.step >= self.config.steps or late >= self.config.patience

    def save(self) -> None:
        """Save the checkpoint of the run."""
        tensors = {f"now/{name}": part for name, part in self.learned.items()}
        tensors |= {f"best/{name}": self.best[name] for name in self.learned}
        facts = {
            "started_with": self.started_with,
            "history": self.history,
            "without": self.without,
            "measured": self.measured,
        }
        save_checkpoint(self.folder, Checkpoint(tensors | moments(self.optimiser, self.learned), facts))


def distill(
    model: Engine,
    lessons: Sequence[Lesson],
    held_out: Sequence[Lesson],
    folder: Path,
    config: DistillConfig | None = None,
    *,
    initial: Adapter | None = None,
    data: str = "",
    progress: ProgressReport | None = None,
) -> Trained:
    """Train an adapter for a model, or resume the run in `folder`.

    lessons, held_out: prompts from `draw_lessons`. The answers of the teacher are stored in `folder`.
    initial: an adapter to start from instead of the model's own, such as the result of an earlier run. The gate still
    compares with the model's own adapter. data: a description of the training data for the adapter's card.
    Raises `InputError` if there are no lessons, or if the folder holds another run.
    """
    config = config or DistillConfig()
    if not lessons or not held_out:
        raise InputError(f"Training needs lessons and held-out lessons; got {len(lessons)} and {len(held_out)}.")
    if initial is not None and config.start is not Start.PRESENT:
        raise InputError(f"An initial adapter requires start={Start.PRESENT}; got start={config.start}.")
    if not isinstance(model, PacketModel):
        raise InputError(
            f"Training needs gradients, which the engine of {model.name} does not compute. Load the model with transformers."
        )
    folder.mkdir(parents=True, exist_ok=True)
    base = model.with_adapter(None)

    def taught(part: Sequence[Lesson]) -> Lessons:
        return Lessons(base, part, folder / "taught", answer_tokens=config.answer_tokens)

    run = _Run(model, taught(lessons), taught(held_out), config, folder, initial)
    if not run.without:
        run.without = run.measure(run.before)
        if initial is not None:
            run.consider()
    while not run.finished():
        loss = run.learn()
        last = run.step + 1 == config.steps
        fidelity = run.consider() if last or (run.step + 1) % config.evaluate_every == 0 else None
        run.history.append({"loss": loss, "fidelity": fidelity})
        run.save()
        if progress is not None:
            best = fmean(means(run.best_measured).values()) if run.measured else None
            progress(Progress(run.step, config.steps, loss, fidelity, best))
    # Convert to the model's number format, in which the adapter was measured. 16 bits keep the file small.
    parts = {name: part.to(base.dtype) for name, part in run.best.items()}
    adapter = Adapter.of(parts, _card(run, data))
    kept = run.best_measured
    errors = standard_errors(run.without, kept)
    return Trained(adapter, passes(run.without, kept), means(run.without), means(kept), errors, run.history)


def _card(run: _Run, data: str) -> AdapterCard:
    prompts = [run.lessons.lesson(n).question.chunks for n in range(len(run.lessons))]
    numbers, lengths = [len(chunks) for chunks in prompts], [len(chunk) for chunks in prompts for chunk in chunks]
    config, model = run.config, run.model
    return AdapterCard(
        architecture=model.adapter_identity["architecture"],
        model=model.name,
        tokenizer=model.tokenizer_hash,
        weights=model.weights_hash,
        data=data,
        chunk_lengths=(min(lengths), max(lengths)),
        anchors=(str(config.first_anchor), str(Anchor.TRAINED if len(run.best["anchor"]) else config.anchor)),
        training={
            "sizes": {name: len(part) for name, part in run.best.items()},
            "start": str(config.start),
            "steps": run.step,
            "batch": config.batch,
            "learning_rate": config.learning_rate,
            "embedding_spread": run.unit,
            "lessons": len(run.lessons),
            "chunks": [min(numbers), max(numbers)],
            "balanced": config.balanced,
            "seed": config.seed,
        },
        fidelity=means(run.best_measured),
        without=means(run.without),
    )
