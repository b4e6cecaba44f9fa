"""The environment of a measurement: versions, number format, device and threads."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import torch

from kvpacket_rag import __version__
from kvpacket_rag.engine.transformers.packet_model import PacketModel

__all__ = ["machine", "versions"]


def versions() -> dict[str, str]:
    """Return the versions of the software that a measurement depends on."""
    return {
        "kvpacket-rag": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
    }


def machine(model: PacketModel) -> dict[str, Any]:
    """Return the number format, the device and the number of threads with which a model runs."""
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
    }
