"""The training loss: KL to the teacher, from its most likely tokens and the total probability of all others.

These are pure functions on tensors. Each token keeps 64 logits instead of a vocabulary of 50,000, so that an answer of
the teacher is small enough for the disk. All other tokens are compared as one event, which can only lower the KL (log
sum inequality).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["TopLogits", "top_kl", "top_logits"]

KEPT = 64


@dataclass(frozen=True, eq=False)
class TopLogits:
    """The most likely next tokens at n positions."""

    ids: Tensor
    """[n, K] int32."""
    log_probabilities: Tensor
    """[n, K] float32."""


def top_logits(logits: Tensor, kept: int = KEPT) -> TopLogits:
    """Return the `kept` most likely tokens of logits [n, vocabulary]."""
    values, ids = logits.float().log_softmax(-1).topk(min(kept, logits.shape[-1]))
    return TopLogits(ids.int(), values)


def top_kl(teacher: TopLogits, logits: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) in nats, [n], for student logits [n, vocabulary]; differentiable in the logits."""
    expected = teacher.log_probabilities.to(logits.device)
    student = logits.float().log_softmax(-1).gather(-1, teacher.ids.long().to(logits.device))
    known = (expected.exp() * (expected - student)).sum(-1)
    rest, student_rest = (_rest(part.exp().sum(-1)) for part in (expected, student))
    return known + rest * (rest.log() - student_rest.log())


def _rest(mass: Tensor) -> Tensor:
    """Return the probability of all other tokens. It is at least 1e-6, because rounding could make it negative."""
    return (1 - mass).clamp_min(1e-6)
