"""Packets placed one after another without recomputation.

They are bare packets, packets as in the KV Packet paper, and packets encoded behind anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvpacket_rag.bench.methods.base import AbstractMethod, Begun, begin_from
from kvpacket_rag.engine.anchors import anchor_ids, encode_in_place
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.anchor import PASSAGES, Anchor, default_anchors
from kvpacket_rag.packets.fingerprint import canonical, short_hash
from kvpacket_rag.packets.number_formats import storage_named
from kvpacket_rag.packets.packet import GroupStates, Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["PacketMethod"]


class PacketMethod(AbstractMethod):
    """Uses packets that are encoded behind an anchor, with or without an adapter."""

    def __init__(
        self,
        name: str,
        anchor: Anchor | None,
        adapter: Adapter | None = None,
        *,
        first: Anchor | None = None,
        texts: tuple[str, ...] = (),
        own: int = 0,
        storage: str = "",
    ) -> None:
        """anchor: the anchor of all chunks. None means both anchors that the adapter was trained with.

        first: the anchor of the first chunk, by default the same as for the others. texts: the passages of a corpus
        anchor. own: the number of passages from the questions' own corpus that are used as `texts`.
        storage: "int8" or "int4" for quantised packets.
        """
        if anchor is None:
            first, anchor = default_anchors(adapter)
        self.name, self.anchor, self.adapter, self.first = name, anchor, adapter, first or anchor
        self.texts, self.own, self.storage = texts, own, storage
        hashes = f"{adapter.packet_hash}/{adapter.anchor_hash}" if adapter else "none"
        self._seen = f"{self.first}/{anchor}/" + short_hash(canonical([PASSAGES, *texts])) + (storage and f"/{storage}")
        self.stored = f"{self._seen}/{hashes}"

    @property
    def identity(self) -> str:
        """The anchors and the adapter, including its bridge."""
        return f"{self._seen}/{self.adapter.digest if self.adapter else 'none'}"

    def for_corpus(self, texts: Sequence[str]) -> PacketMethod:
        """Return the method with an anchor of the corpus's own passages, if `own` requests them.

        Raises `InputError` if there are too few passages.
        """
        if not self.own:
            return self
        if len(texts) < self.own:
            raise InputError(
                f"The method {self.name!r} needs {self.own} passages that belong to no question, and there are {len(texts)}. "
                "Ask for fewer questions of each kind, or leave the method out."
            )
        chosen = tuple(texts[: self.own])
        return PacketMethod(self.name, self.anchor, self.adapter, first=self.first, texts=chosen, storage=self.storage)

    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Encode every chunk behind its anchor, with the adapter's header and trailer."""
        adapted = model.with_adapter(self.adapter)
        first, later = (anchor_ids(adapted, anchor, self.texts) for anchor in (self.first, self.anchor))
        packets = encode_in_place(adapted, chunks, first=first, later=later)
        if not self.storage:
            return packets
        bits = storage_named(self.storage).bits
        return [replace(p, states=tuple(GroupStates(*s.quantised(bits)) for s in p.states)) for p in packets]

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Place the packets and run the adapter's bridge and the question."""
        return begin_from(model.with_adapter(self.adapter), question, packets, room)
