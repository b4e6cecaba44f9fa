"""The settings of adapter training."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.training.parts import Sizes, Start

__all__ = ["DistillConfig"]


@dataclass(frozen=True)
class DistillConfig:
    """The settings of a training run for an adapter."""

    sizes: Sizes = field(default_factory=lambda: Sizes(anchor=256))
    start: Start = Start.PRESENT
    anchor: Anchor = Anchor.PASSAGES
    """The anchor behind which chunks are encoded. If the run trains an anchor, the trained anchor takes its place."""
    first_anchor: Anchor = Anchor.OPENING
    """The anchor behind which the first chunk is encoded."""
    steps: int = 60
    batch: int = 8
    """Number of lessons in one optimiser step."""
    accumulate: int = 4
    """Number of parts into which a batch is divided to save memory. The parts run one after another."""
    learning_rate: float = 0.045
    """The highest learning rate, as a fraction of the standard deviation of the model's embeddings. The deviation
    differs tenfold between models."""
    warm_up: float = 0.05
    """The fraction of the steps in which the learning rate rises. It then falls linearly to zero."""
    clip: float = 1.0
    """The largest norm of the gradient, computed over all parts together."""
    tail_weight: float = 0.1
    """The weight of the KL over the question's tokens, relative to the KL over the answer's tokens."""
    balanced: bool = True
    """Whether lessons get a weight in inverse proportion to the initial divergence of their domain, so that all domains
    improve alike."""
    answer_tokens: int = 24
    """Maximum number of tokens in an answer of the teacher."""
    evaluate_every: int = 10
    """Number of steps between measurements on the held-out lessons."""
    patience: int = 6
    """Number of measurements without improvement after which training stops."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "answer_tokens", "evaluate_every", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("anchor", "first_anchor"):
            if getattr(self, name) not in (Anchor.PASSAGES, Anchor.OPENING, Anchor.NONE):
                raise InputError(
                    f"{name} must be passages, opening or none in training; got {str(getattr(self, name))!r}."
                )
        if self.batch % self.accumulate:
            raise InputError(f"batch must be a multiple of accumulate; got {self.batch} and {self.accumulate}.")
        if not self.learning_rate > 0 or not 0 <= self.warm_up < 1 or self.tail_weight < 0 or not self.clip > 0:
            raise InputError("learning_rate and clip must be above 0, warm_up in [0, 1), tail_weight 0 or more.")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, numbered from 0, as a fraction of the embeddings' standard deviation."""
        rising = max(1, round(self.warm_up * self.steps))
        return self.learning_rate * min((step + 1) / rising, (self.steps - step) / max(1, self.steps - rising + 1))
