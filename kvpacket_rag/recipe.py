"""How the packets of a store are made: which anchor they see, which fingerprint results, which number format they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvpacket_rag.anchor import Anchor, anchor_ids
from kvpacket_rag.errors import InputError
from kvpacket_rag.model import PacketModel
from kvpacket_rag.packet import Fingerprint

__all__ = ["PacketRecipe", "storage_dtype"]

NAMESPACE = "default"
STORAGE = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, eq=False)
class PacketRecipe:
    """How packets for one place in the context are made."""

    anchor: Anchor
    anchor_ids: tuple[int, ...]
    fingerprint: Fingerprint
    storage: torch.dtype

    @classmethod
    def of(cls, model: PacketModel, anchor: Anchor, storage: torch.dtype, texts: Sequence[str] = ()) -> PacketRecipe:
        """Give the recipe of packets behind `anchor` (a corpus anchor of `texts`), stored as `storage`."""
        ids = anchor_ids(model, anchor, texts)
        return cls(anchor, ids, model.fingerprint(namespace=NAMESPACE, anchor=ids, storage=storage), storage)


def storage_dtype(name: str | None, model: PacketModel) -> torch.dtype:
    """Choose the number format of packets at rest: 16 bit by default, the model's own if it computes in 16 bit."""
    if name is None:
        return torch.float16 if model.dtype in (torch.float32, torch.float64) else model.dtype
    if name not in STORAGE:
        raise InputError(f"storage must be one of {', '.join(STORAGE)}; got {name!r}.")
    return STORAGE[name]
