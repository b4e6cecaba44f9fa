"""EPIC (LegoLink, arXiv 2410.15332) recomputes the first tokens of every chunk to remove their attention sinks."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of, spans
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["Epic"]


class Epic(AbstractRepair):
    """Recomputes the beginning of every chunk."""

    kind = "epic"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Choose the same share of tokens from the start of each chunk."""
        first = [slot for span in spans(question) for slot in span[: count_of(self.share, len(span))]]
        return Choice(torch.tensor(first))
