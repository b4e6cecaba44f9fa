"""Full prefill: every token of the prompt is computed. The reference. Also without documents: the floor."""

from __future__ import annotations

from collections.abc import Sequence

from kvpacket_rag.bench.methods.base import AbstractMethod, Begun, Pass
from kvpacket_rag.engine.assembly import prefill
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["FullPrefill", "NoDocuments"]


class FullPrefill(AbstractMethod):
    """The prompt as text, read from its first token to its last."""

    name = "full"

    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Nothing is stored."""
        return []

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Compute the whole prompt."""
        context, logits = prefill(model, question.prefix, question.chunks, question.tail, room=room)
        return Begun(context, logits, (Pass.behind(0, context.computed, logits=1),))


class NoDocuments(FullPrefill):
    """The question alone: what the model knows without any document."""

    name = "none"

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Compute prefix and question only."""
        return super().begin(model, Question(question.prefix, (), question.tail), packets, room)
