"""The base class of EPIC, CacheBlend, SAM-KV, A³ and the control: bare packets with some tokens recomputed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpacket_rag.bench.methods.base import AbstractMethod, Begun, Pass
from kvpacket_rag.engine.assembly import Context, ask, assemble
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["AbstractRepair", "Choice", "count_of", "spans"]


@dataclass(frozen=True, eq=False)
class Choice:
    """The slots to recompute, and the cost of choosing them."""

    slots: Tensor
    passes: tuple[Pass, ...] = ()


def spans(question: Question) -> list[range]:
    """Return the slots of every chunk in the assembled context."""
    found, start = [], len(question.prefix)
    for chunk in question.chunks:
        found.append(range(start, start + len(chunk)))
        start += len(chunk)
    return found


def count_of(share: float, total: int) -> int:
    """Return the number of tokens in a share of `total`: at least one, and all for a share of 1."""
    return min(total, max(1, round(share * total)))


class AbstractRepair(AbstractMethod):
    """Encodes packets alone, then recomputes a share of their tokens in the assembled context."""

    kind: str
    stored = f"{Anchor.NONE}/{Anchor.NONE}/none"

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"The share of recomputed tokens must be above 0 and at most 1; got {share}.")
        self.share = share
        self.name = f"{self.kind}-{round(100 * share)}"

    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Encode every chunk alone."""
        return model.with_adapter(None).encode(chunks)

    @abstractmethod
    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Choose the slots to recompute in the context, which holds the prefix and the packets."""

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Place the packets, recompute the chosen tokens in one pass, and run the question."""
        model = model.with_adapter(None)
        context = assemble(model, question.prefix, packets, room=len(question.tail) + room)
        filled = context.cache.length
        choice = self.choose(model, context, question)
        slots = choice.slots.sort().values
        model.recompute(context.cache, slots, torch.tensor(context.token_ids)[slots])
        repaired = Pass(len(slots), int((slots + 1).sum()))
        logits = ask(model, context, question.tail)
        passes = (*choice.passes, repaired, Pass.behind(filled, len(question.tail), logits=1))
        return Begun(context, logits, passes)
