"""How the packets of a store are made: which anchor they see, which fingerprint results, which number format they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpacket_rag.anchor import Anchor, anchor_ids
from kvpacket_rag.model import PacketModel
from kvpacket_rag.packet import Fingerprint
from kvpacket_rag.precision import Storage

__all__ = ["PacketRecipe"]

NAMESPACE = "default"


@dataclass(frozen=True, eq=False)
class PacketRecipe:
    """How packets for one place in the context are made."""

    anchor: Anchor
    anchor_ids: tuple[int, ...]
    fingerprint: Fingerprint
    storage: Storage

    @classmethod
    def of(cls, model: PacketModel, anchor: Anchor, storage: Storage, texts: Sequence[str] = ()) -> PacketRecipe:
        """Give the recipe of packets behind `anchor` (a corpus anchor of `texts`), stored as `storage`."""
        ids = anchor_ids(model, anchor, texts)
        return cls(anchor, ids, model.fingerprint(namespace=NAMESPACE, anchor=ids, storage=storage.name), storage)
