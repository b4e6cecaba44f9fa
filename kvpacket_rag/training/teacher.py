"""What full prefill answers, and with which distributions: the reference for methods and the teacher of adapters."""

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
    """Token ids, with the end token if it was reached."""
    logits: Tensor
    """[n, vocabulary] float32, from which each of the n tokens was chosen."""


def continue_greedily(
    model: Engine, cache: ContextCache, logits: Tensor, *, position: int, most: int
) -> tuple[list[int], list[Tensor]]:
    """Choose up to `most` tokens, the first from `logits` [vocabulary], the others behind the cache's filled slots.

    position: of the first token chosen. Stops at an end token, which is kept. Returns ids and the logits each came from.
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
    """Logits [m + n - 1, vocabulary] at the m tail tokens and all but the last of the n of a given answer, from packets."""
    forced = [*question.tail, *answer[:-1]]
    bridge = model.adapter.bridge
    context = assemble(model, question.prefix, packets, room=len(bridge) + len(forced))
    return model.logits(context.cache, forced, keep=len(forced), bridge=bridge)[0]


def teach(model: Engine, question: Question, *, most: int) -> Taught:
    """Answer a question by full prefill, greedily, with up to `most` tokens."""
    context, logits = prefill(model, question.prefix, question.chunks, question.tail, room=most)
    ids, seen = continue_greedily(model, context.cache, logits[0], position=question.length, most=most)
    return Taught(tuple(ids), torch.stack(seen))
