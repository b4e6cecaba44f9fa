"""A³ (arXiv 2511.17560) recomputes the tokens that the question attends to most."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.base import Pass
from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["A3"]


class A3(AbstractRepair):
    """Recomputes the tokens that get the most attention from the question over the unchanged packets.

    The attention of all question tokens is averaged over layers and heads. The paper's abstract does not specify this.
    """

    kind = "a3"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Run the question once over the packets, and rank the chunk tokens by the attention that they get."""
        start, stop = len(question.prefix), context.cache.length
        weights = model.attention(context.cache, torch.tensor(question.tail)).mean(0)[start:stop]
        chosen = weights.topk(count_of(self.share, stop - start)).indices.cpu()
        return Choice(start + chosen, (Pass.behind(stop, len(question.tail)),))
