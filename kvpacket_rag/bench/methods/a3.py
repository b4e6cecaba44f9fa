"""A³ (arXiv 2511.17560): the tokens that the question attends to most are recomputed."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.base import Pass
from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["A3"]


class A3(AbstractRepair):
    """Recompute the tokens that get most attention from the question over the packets as they are.

    The attention of all question tokens is averaged over layers and heads, which the abstract leaves open.
    """

    kind = "a3"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Run the question once over the packets and rank chunk tokens by the attention they get."""
        start, stop = len(question.prefix), context.cache.length
        weights = model.attention(context.cache, torch.tensor(question.tail)).mean(0)[start:stop]
        chosen = weights.topk(count_of(self.share, stop - start)).indices.cpu()
        return Choice(start + chosen, (Pass.behind(stop, len(question.tail)),))
