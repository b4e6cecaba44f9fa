"""Greedy answers of full prefill with their logits. They are the reference for methods and the teacher of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpacket_rag.engine.assembly import assemble, prefill
from kvpacket_rag.engine.protocol import ContextCache, Engine
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["Taught", "continue_greedily", "forced_logits", "teach"]


@dataclass(frozen=True, eq=False)
class Taught:
    """The greedy answer of a full prefill."""

    answer: tuple[int, ...]
    """Token ids, including the end token if the answer reached it."""
    logits: Tensor
    """Float32 logits [n, vocabulary], from which the n tokens were chosen."""


def continue_greedily(
    model: Engine, cache: ContextCache, logits: Tensor, *, position: int, most: int
) -> tuple[list[int], list[Tensor]]:
    """Generate up to `most` tokens greedily. An end token stops the generation and is kept.

    The first token is chosen from `logits` [vocabulary], the others are decoded behind the cache's filled slots.
    position: the position of the first generated token. Returns the ids, and the logits from which each was chosen.
    """
    ids: list[int] = []
    seen: list[Tensor] = []
    while True:
        ids.append(int(logits.argmax()))
        seen.append(logits)
        if ids[-1] in model.end_ids or len(ids) >= most:
            return ids, seen
        at = torch.tensor([[position + len(ids) - 1]])
        logits = model.forward(cache, ids[-1:], positions=at)[0]


def forced_logits(model: Engine, question: Question, packets: Sequence[Packet], answer: Sequence[int]) -> Tensor:
    """Return the logits [m + n - 1, vocabulary] for a given answer of n tokens, computed from packets.

    They are the logits at the m tail tokens and at all answer tokens except the last.
    """
    forced = [*question.tail, *answer[:-1]]
    bridge = model.adapter.bridge
    context = assemble(model, question.prefix, packets, room=len(bridge) + len(forced))
    return model.logits(context.cache, forced, keep=len(forced), bridge=bridge)[0]


def teach(model: Engine, question: Question, *, most: int) -> Taught:
    """Answer a question greedily by full prefill, with up to `most` tokens."""
    context, logits = prefill(model, question.prefix, question.chunks, question.tail, room=most)
    ids, seen = continue_greedily(model, context.cache, logits[0], position=question.length, most=most)
    return Taught(tuple(ids), torch.stack(seen))
