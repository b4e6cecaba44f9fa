"""Load a model by name with the engine that runs it."""

from __future__ import annotations

from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.packets.adapter import SHIPPED, Adapter

__all__ = ["load_engine"]


def load_engine(name: str, *, dtype: str | None = None, adapter: Adapter | str | None = SHIPPED) -> Engine:
    """Load a model by catalogue name, Hugging Face id, folder or GGUF file.

    dtype: the number format that the model computes in. The default is the fastest native one. adapter: an adapter, the
    path of an adapter file, or None. The default is the adapter that comes with the package for this model, if there is
    one.
    Raises `ModelLoadError` if no model can be loaded under that name, and `UnsupportedModelError` if the model's cached
    states cannot be moved.
    """
    from kvpacket_rag.engine.transformers.packet_model import PacketModel

    return PacketModel.from_pretrained(name, dtype=dtype, adapter=adapter)
