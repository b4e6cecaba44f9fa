"""Packets placed side by side, nothing recomputed: bare, as in the KV Packet paper, and behind anchors."""

from __future__ import annotations

from collections.abc import Sequence

from kvpacket_rag.adapter import Adapter
from kvpacket_rag.anchor import Anchor, anchor_ids
from kvpacket_rag.baselines.base import AbstractMethod, Begun, begin_from
from kvpacket_rag.model import PacketModel
from kvpacket_rag.packet import Packet
from kvpacket_rag.questions import Question

__all__ = ["PacketMethod"]


class PacketMethod(AbstractMethod):
    """Packets made behind an anchor, with an adapter or without."""

    def __init__(self, name: str, anchor: Anchor, adapter: Adapter | None = None) -> None:
        self.name, self.anchor, self.adapter = name, anchor, adapter
        self.stored = f"{anchor}/{adapter.packet_hash if adapter else 'none'}"

    @property
    def identity(self) -> str:
        """Anchor and adapter, the bridge included."""
        return f"{self.anchor}/{self.adapter.digest if self.adapter else 'none'}"

    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Encode every chunk behind the anchor, with the adapter's header and trailer."""
        return model.with_adapter(self.adapter).encode(chunks, anchor=anchor_ids(model, self.anchor))

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Place the packets and run the adapter's bridge and the question."""
        return begin_from(model.with_adapter(self.adapter), question, packets, room)
