"""Number formats of packets at rest: 16 and 32 bit as they are, 8 and 4 bit by blocks.

Keys have channels that are large in every token, so that their blocks run along the tokens of one channel; values
have none, and their blocks run along the channels of one token (KIVI, arXiv 2402.02750, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvpacket_rag.errors import InputError
from kvpacket_rag.packet import GroupStates
from kvpacket_rag.quantised import Quantised, dense, quantize

__all__ = [
    "CHANNELS",
    "DEFAULT_STORAGE",
    "MEASURED_IN_4_BIT",
    "QUANTISED",
    "STORAGE",
    "TOKENS",
    "Storage",
    "quantize_states",
    "storage_named",
]

TOKENS, CHANNELS = -2, -1
"""Dimension of states [L, H, T, D] along which the blocks of keys and of values run."""


@dataclass(frozen=True)
class Storage:
    """A number format of packets at rest."""

    name: str
    """Part of a packet's identity."""
    dtype: torch.dtype
    """Of the numbers, or of the codes of quantised ones."""
    bits: int = 0
    """Of a quantised number; 0 if numbers are kept as they are."""


STORAGE = {
    "bfloat16": Storage("bfloat16", torch.bfloat16),
    "float16": Storage("float16", torch.float16),
    "float32": Storage("float32", torch.float32),
    "int8": Storage("int8", torch.int8, 8),
    "int4": Storage("int4", torch.uint8, 4),
}
QUANTISED = tuple(name for name, storage in STORAGE.items() if storage.bits)
MEASURED_IN_4_BIT = ("smollm2-135m-instruct", "Qwen2.5-Coder-0.5B-Instruct")
"""Models of which it is known what 4 bit cost (docs/fidelity.md)."""
DEFAULT_STORAGE = "int8"
"""Half the bytes of 16 bit, at no loss that could be measured (docs/fidelity.md)."""


def storage_named(name: str | None) -> Storage:
    """Give the format of this name, default `DEFAULT_STORAGE`. Raises `InputError` for another name."""
    found = STORAGE.get(DEFAULT_STORAGE if name is None else name)
    if found is None:
        raise InputError(f"storage must be one of {', '.join(STORAGE)}; got {name!r}.")
    return found


def quantize_states(states: GroupStates, bits: int) -> tuple[Quantised, Quantised]:
    """Keys and values of a layer group, quantised. Raises `InputError` for numbers float16 cannot hold."""
    parts = dense(states.keys), dense(states.values)
    if not all(part.isfinite().all() and part.abs().max() < 6e4 for part in parts):
        raise InputError("Some states are too large to quantise. Open the store with storage='bfloat16' or 'float32'.")
    return quantize(parts[0], bits, TOKENS), quantize(parts[1], bits, CHANNELS)
