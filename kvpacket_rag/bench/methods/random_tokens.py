"""The control: recomputes as many tokens as the other methods, but chooses them at random."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["RandomTokens"]


class RandomTokens(AbstractRepair):
    """Recomputes random tokens of the chunks. Equal lengths give equal choices."""

    kind = "random"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Draw without replacement from all chunk tokens."""
        start, stop = len(question.prefix), context.cache.length
        order = torch.randperm(stop - start, generator=torch.Generator().manual_seed(stop))
        return Choice(start + order[: count_of(self.share, stop - start)])
