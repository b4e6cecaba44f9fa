"""Full prefill, with and without documents.

With documents, it computes every token of the prompt and is the reference. Without documents, it is the lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvpacket_rag.bench.methods.base import AbstractMethod, Begun, Pass
from kvpacket_rag.engine.assembly import prefill
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["FullPrefill", "NoDocuments"]


class FullPrefill(AbstractMethod):
    """Computes the whole prompt as text, from its first token to its last."""

    name = "full"

    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Return no packets, because this method stores nothing."""
        return []

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Compute the whole prompt."""
        context, logits = prefill(model, question.prefix, question.chunks, question.tail, room=room)
        return Begun(context, logits, (Pass.behind(0, context.computed, logits=1),))


class NoDocuments(FullPrefill):
    """Computes the question alone. It shows what the model knows without any document."""

    name = "none"

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Compute only the prefix and the question."""
        return super().begin(model, Question(question.prefix, (), question.tail), packets, room)
