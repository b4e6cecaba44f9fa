"""How the packets of a store are made: which anchor they see, which fingerprint results, which number format they keep."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from kvpacket_rag.anchor import Anchor, anchor_ids
from kvpacket_rag.database import read_fact, write_fact
from kvpacket_rag.model import PacketModel
from kvpacket_rag.packet import Fingerprint
from kvpacket_rag.precision import Storage

__all__ = ["ADAPTER", "DEFAULT_NAMESPACE", "PacketRecipe", "read_adapter", "write_adapter"]

DEFAULT_NAMESPACE = "default"
ADAPTER = "adapter"
"""The fact that holds the adapter of a store that does not use the one of the package."""


@dataclass(frozen=True, eq=False)
class PacketRecipe:
    """How packets for one place in the context are made."""

    anchor: Anchor
    anchor_ids: tuple[int, ...]
    fingerprint: Fingerprint
    storage: Storage

    @classmethod
    def of(
        cls, model: PacketModel, anchor: Anchor, storage: Storage, texts: Sequence[str] = (), namespace: str = DEFAULT_NAMESPACE
    ) -> PacketRecipe:  # fmt: skip
        """Give the recipe of packets behind `anchor` (a corpus anchor of `texts`), stored as `storage`."""
        ids = anchor_ids(model, anchor, texts)
        return cls(anchor, ids, model.fingerprint(namespace=namespace, anchor=ids, storage=storage.name), storage)


def read_adapter(connection: sa.Connection) -> bytes | None:
    """The bytes of the store's own adapter, if it has one."""
    text: str | None = read_fact(connection, ADAPTER)
    return None if text is None else base64.b64decode(text)


def write_adapter(connection: sa.Connection, data: bytes | bytearray) -> None:
    """Keep an adapter with the store."""
    write_fact(connection, ADAPTER, base64.b64encode(data).decode())
