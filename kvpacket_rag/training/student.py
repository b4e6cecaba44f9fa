"""The student: the model that answers from packets.

It uses the same `encode` and `assemble` as answering does, but with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kvpacket_rag.engine.anchors import anchor_ids
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.config import DistillConfig
from kvpacket_rag.training.lessons import Lesson, TaughtLesson
from kvpacket_rag.training.teacher import forced_logits

__all__ = ["packets_of", "student_logits"]


def student_logits(model: PacketModel, packets: Sequence[Packet], taught: TaughtLesson) -> Tensor:
    """Return the logits [m + n - 1, vocabulary] at the m tail tokens and n - 1 answer tokens, computed from packets."""
    return forced_logits(model, taught.lesson.question, packets, taught.answer)


def packets_of(model: PacketModel, lessons: Sequence[Lesson], config: DistillConfig) -> list[list[Packet]]:
    """Encode the packets of every lesson. All first chunks are encoded together, and so are all later chunks."""
    firsts = [lesson.question.chunks[0] for lesson in lessons]
    others = [chunk for lesson in lessons for chunk in lesson.question.chunks[1:]]
    first = model.encode(firsts, anchor=anchor_ids(model, config.first_anchor))
    later = model.encode(
        others, anchor=anchor_ids(model, Anchor.TRAINED if len(model.adapter.anchor) else config.anchor)
    )
    found, at = [], 0
    for number, lesson in enumerate(lessons):
        count = len(lesson.question.chunks) - 1
        found.append([first[number], *later[at : at + count]])
        at += count
    return found
