"""Numbers in 8 and 4 bit: quantised by blocks along one dimension, and read back in part or whole.

A block of up to 64 numbers has a step in float16, and with 4 bit, where half a step is much, its smallest number as
well; 4-bit codes are packed two to a byte. Pure functions on tensors; this file knows no packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = [
    "CHANNELS",
    "DEFAULT_STORAGE",
    "MEASURED_IN_4_BIT",
    "QUANTISED",
    "STORAGE",
    "TOKENS",
    "Quantised",
    "Storage",
    "blocks_of",
    "dense",
    "quantize",
    "storage_named",
]

from kvpacket_rag.errors import InputError

BLOCK = 64

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


@dataclass(frozen=True, eq=False)
class Quantised:
    """Numbers [L, H, T, D] in few bits; blocks of up to 64 along dimension `dim`."""

    codes: Tensor
    """int8 [L, H, T, D], or uint8 [L, H, T, ceil(D / 2)] for 4 bit."""
    steps: Tensor
    """float16, as the numbers but with one for each block."""
    lows: Tensor | None
    """float16, the smallest number of each block, with 4 bit."""
    width: int
    """D."""
    dim: int
    """-2 or -1."""

    @property
    def shape(self) -> torch.Size:
        """Of the numbers."""
        return torch.Size((*self.codes.shape[:3], self.width))

    @property
    def ndim(self) -> int:
        """Number of dimensions, 4."""
        return self.codes.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of codes, steps and smallest numbers."""
        return self.codes.nbytes + self.steps.nbytes + (0 if self.lows is None else self.lows.nbytes)

    def to(self, *, device: torch.device, non_blocking: bool = False) -> Quantised:
        """The same on a device."""
        codes, steps = (part.to(device, non_blocking=non_blocking) for part in (self.codes, self.steps))
        lows = None if self.lows is None else self.lows.to(device, non_blocking=non_blocking)
        return replace(self, codes=codes, steps=steps, lows=lows)

    def first(self, count: int) -> Quantised:
        """The first `count` of T, sharing memory."""
        blocks = -(-count // BLOCK) if self.dim == -2 else count
        lows = None if self.lows is None else self.lows[:, :, :blocks]
        return replace(self, codes=self.codes[:, :, :count], steps=self.steps[:, :, :blocks], lows=lows)

    def block(self, start: int) -> Tensor:
        """Up to 64 of T from `start`, a multiple of 64, on: float32 [L, H, t, D]."""
        some = slice(start, start + BLOCK)
        own = slice(start // BLOCK, start // BLOCK + 1) if self.dim == -2 else some
        codes = self.codes[:, :, some] if self.lows is None else _unpacked(self.codes[:, :, some], self.width)
        numbers = codes.float().mul_(self._spread(self.steps[:, :, own]))
        return numbers if self.lows is None else numbers.add_(self._spread(self.lows[:, :, own]))

    def _spread(self, blocks: Tensor) -> Tensor:
        """Float32 numbers that broadcast over those of their blocks."""
        return _spread(blocks.float(), self.width, -1) if self.dim == -1 else blocks.float()


def quantize(numbers: Tensor, bits: int, dim: int) -> Quantised:
    """Quantise numbers [L, H, T, D] to 8 or 4 bits by blocks along `dim`.

    Errors are about half a step at most; with 4 bit more where a block lies far from zero, as its smallest number is rounded.
    """
    wide = numbers.float()
    length, width = wide.shape[dim], wide.shape[-1]
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
        return Quantised(_packed(codes.clamp_(0, highest).to(torch.uint8)), steps, lows, width, dim)
    return Quantised(codes.clamp_(-highest, highest).to(torch.int8), steps, None, width, dim)


def blocks_of(numbers: Tensor | Quantised) -> Iterator[tuple[slice, Tensor]]:
    """Numbers [L, H, T, D] some of T at a time: all as they are, or read back block by block in float32, which stays in a cache."""
    if isinstance(numbers, Tensor):
        yield slice(None), numbers
        return
    for start in range(0, numbers.shape[2], BLOCK):
        yield slice(start, start + BLOCK), numbers.block(start)


def dense(numbers: Tensor | Quantised) -> Tensor:
    """Numbers as a tensor: as they are, or read back in float32."""
    if isinstance(numbers, Tensor):
        return numbers
    return torch.cat([block for _, block in blocks_of(numbers)], dim=2)


def _spread(blocks: Tensor, length: int, dim: int) -> Tensor:
    """One number of each block for every number in it; as a view where there is one block."""
    if blocks.shape[dim] == 1:
        return blocks
    return blocks.repeat_interleave(BLOCK, dim).narrow(dim, 0, length)


def _packed(codes: Tensor) -> Tensor:
    if codes.shape[-1] % 2:
        codes = torch.cat((codes, torch.zeros_like(codes[..., :1])), -1)
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def _unpacked(packed: Tensor, width: int) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :width]
