"""Adapters that come with the package, found by the model they were trained for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Any

from kvpacket_rag.adapter import Adapter
from kvpacket_rag.errors import AdapterError

__all__ = ["shipped_adapter"]


def shipped_adapter(identity: Mapping[str, Any], kind: str = "packet") -> Adapter | None:
    """Give the adapter of this package for a model, or None if there is none.

    identity: `PacketModel.adapter_identity`. kind: "packet", the default adapter, trained behind the context anchor;
    "paper", trained without an anchor as in the KV Packet paper, for comparison.
    """
    for entry in sorted((files("kvpacket_rag") / "adapters").iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(f".{kind}.safetensors"):
            continue
        with as_file(entry) as path:
            adapter = Adapter.load(path)
        try:
            adapter.check(**identity)
        except AdapterError:
            continue
        return adapter
    return None
