"""How an adapter is trained, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.training.parts import Sizes, Start

__all__ = ["DistillConfig"]


@dataclass(frozen=True)
class DistillConfig:
    """How an adapter is trained."""

    sizes: Sizes = field(default_factory=lambda: Sizes(anchor=256))
    start: Start = Start.PRESENT
    anchor: Anchor = Anchor.PASSAGES
    """What chunks see when their packets are made; the trained anchor takes its place where one is learned."""
    first_anchor: Anchor = Anchor.OPENING
    """The same for the chunk that stands first."""
    steps: int = 60
    batch: int = 8
    """Lessons of one optimiser step."""
    accumulate: int = 4
    """Parts a batch is run in, to save memory."""
    learning_rate: float = 0.045
    """Highest learning rate, as a share of the spread of the model's embeddings, which differs tenfold between models."""
    warm_up: float = 0.05
    """Share of the steps in which the learning rate rises; it then falls linearly to zero."""
    clip: float = 1.0
    """Largest norm of the gradient of all parts together."""
    tail_weight: float = 0.1
    """Weight of the KL over the question's tokens beside that over the answer's."""
    balanced: bool = True
    """Whether lessons of domains that diverge little to begin with count as much more, so that all domains gain alike."""
    answer_tokens: int = 24
    """Longest taught answer."""
    evaluate_every: int = 10
    """Steps between measurements on the held-out lessons."""
    patience: int = 6
    """Measurements without improvement after which training stops."""
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
        """Learning rate of a step, numbered from 0, as a share of the embeddings' spread."""
        rising = max(1, round(self.warm_up * self.steps))
        return self.learning_rate * min((step + 1) / rising, (self.steps - step) / max(1, self.steps - rising + 1))
