"""EPIC (LegoLink, arXiv 2410.15332): the first tokens of every chunk are recomputed, which takes their sinks away."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of, spans
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["Epic"]


class Epic(AbstractRepair):
    """Recompute the beginning of every chunk."""

    kind = "epic"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Take the same share of each chunk, from its start."""
        first = [slot for span in spans(question) for slot in span[: count_of(self.share, len(span))]]
        return Choice(torch.tensor(first))
