"""Number formats of packets at rest: 16 and 32 bit as they are, 8 and 4 bit by blocks.

Keys have channels that are large in every token, so that their blocks run along the tokens of one channel; values
have none, and their blocks run along the channels of one token (KIVI, arXiv 2402.02750, section 3). A block of up to
64 numbers has a step in float16, and with 4 bit, where half a step is much, its smallest number as well; 4-bit codes
are packed two to a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvpacket_rag.errors import InputError
from kvpacket_rag.packet import GroupStates

__all__ = [
    "STORAGE",
    "Blocks",
    "Storage",
    "dequantize",
    "dequantize_states",
    "quantize",
    "quantize_states",
    "storage_named",
]

BLOCK = 64
TOKENS, CHANNELS = -2, -1
"""Dimension of states [L, H, T, D] along which the blocks of keys and of values run."""


@dataclass(frozen=True)
class Storage:
    """A number format of packets at rest."""

    name: str
    """Part of a packet's identity."""
    dtype: torch.dtype
    """Of the states in memory."""
    bits: int = 0
    """Of a quantised number; 0 if numbers are kept as they are."""


STORAGE = {
    "bfloat16": Storage("bfloat16", torch.bfloat16),
    "float16": Storage("float16", torch.float16),
    "float32": Storage("float32", torch.float32),
}
QUANTISED = {"int8": 8, "int4": 4}


def storage_named(name: str | None, compute: torch.dtype) -> Storage:
    """Give the format of this name; without one 16 bit, the model's own if it computes in 16 bit.

    compute: number format of the model, in which quantised states are held in memory if it has 16 bit.
    Raises `InputError` for another name.
    """
    half = torch.float16 if compute in (torch.float32, torch.float64) else compute
    if name is None:
        return STORAGE[str(half).removeprefix("torch.")]
    if name in QUANTISED:
        return Storage(name, half, QUANTISED[name])
    if name not in STORAGE:
        raise InputError(f"storage must be one of {', '.join((*STORAGE, *QUANTISED))}; got {name!r}.")
    return STORAGE[name]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Quantised numbers [L, H, T, D]; blocks of up to 64 along one dimension."""

    codes: Tensor
    """int8 [L, H, T, D], or uint8 [ceil(L * H * T * D / 2)] for 4 bit."""
    steps: Tensor
    """float16, as the numbers but with one for each block."""
    lows: Tensor | None = None
    """float16, the smallest number of each block, with 4 bit."""


def quantize(numbers: Tensor, bits: int, dim: int) -> Blocks:
    """Quantise numbers [L, H, T, D] by blocks along `dim`, with an error of about half a step at most."""
    wide = numbers.float()
    length = wide.shape[dim]
    parts = torch.split(wide, BLOCK, dim)
    lows = None
    if bits == 4:
        lows = torch.cat([part.amin(dim, keepdim=True) for part in parts], dim).half()
        wide = wide - _spread(lows.float(), length, dim)
        parts = torch.split(wide, BLOCK, dim)
    highest = 15 if bits == 4 else 127
    steps = (torch.cat([part.abs().amax(dim, keepdim=True) for part in parts], dim) / highest).half()
    steps = torch.where(steps > 0, steps, torch.ones_like(steps))
    codes = (wide / _spread(steps.float(), length, dim)).round_()
    if bits == 4:
        return Blocks(_packed(codes.clamp_(0, highest).to(torch.uint8)), steps, lows)
    return Blocks(codes.clamp_(-highest, highest).to(torch.int8), steps)


def dequantize(blocks: Blocks, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Tensor:
    """Numbers [L, H, T, D] of blocks, in number format `dtype`."""
    length = shape[dim]
    codes = blocks.codes if blocks.lows is None else _unpacked(blocks.codes, shape)
    numbers = codes.float().mul_(_spread(blocks.steps.float(), length, dim))
    return (numbers if blocks.lows is None else numbers.add_(_spread(blocks.lows.float(), length, dim))).to(dtype)


def _spread(blocks: Tensor, length: int, dim: int) -> Tensor:
    """One number of each block for every number in it; as a view where there is one block."""
    if blocks.shape[dim] == 1:
        return blocks
    return blocks.repeat_interleave(BLOCK, dim).narrow(dim, 0, length)


def _packed(codes: Tensor) -> Tensor:
    flat = codes.flatten()
    if flat.numel() % 2:
        flat = torch.cat((flat, flat.new_zeros(1)))
    return flat[::2] | (flat[1::2] << 4)


def _unpacked(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    flat = torch.stack((packed & 15, packed >> 4), -1).flatten()
    return flat[: torch.Size(shape).numel()].reshape(shape)


def quantize_states(states: GroupStates, bits: int) -> tuple[Blocks, Blocks]:
    """Keys and values of a layer group, quantised. Raises `InputError` for numbers float16 cannot hold."""
    if not all(part.isfinite().all() and part.abs().max() < 6e4 for part in (states.keys, states.values)):
        raise InputError("Some states are too large to quantise. Open the store with storage='bfloat16' or 'float32'.")
    return quantize(states.keys, bits, TOKENS), quantize(states.values, bits, CHANNELS)


def dequantize_states(
    keys: Blocks, values: Blocks, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> GroupStates:
    """Keys and values of a layer group, in number format `dtype`."""
    return GroupStates(dequantize(keys, shapes[0], TOKENS, dtype), dequantize(values, shapes[1], CHANNELS, dtype))
