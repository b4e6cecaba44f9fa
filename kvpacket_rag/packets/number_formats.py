"""Number formats of packets: 8-bit and 4-bit quantisation by blocks along one dimension, and dequantisation.

A block has up to 64 numbers and one step in float16. With 4 bits, half a step is a large error, so each block also
stores its smallest number in float16. Two 4-bit codes are packed into one byte. Quantised numbers can be dequantised in
part or as a whole. The functions are pure functions on tensors, and this module does not depend on packets.
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
"""The dimensions of states [L, H, T, D] along which blocks run: `TOKENS` for keys, `CHANNELS` for values."""


@dataclass(frozen=True)
class Storage:
    """A number format in which packets are stored."""

    name: str
    """Name of the format. It is part of a packet's identity."""
    dtype: torch.dtype
    """Data type of the numbers, or of the codes if the numbers are quantised."""
    bits: int = 0
    """Number of bits of a quantised number; 0 if the numbers are not quantised."""


STORAGE = {
    "bfloat16": Storage("bfloat16", torch.bfloat16),
    "float16": Storage("float16", torch.float16),
    "float32": Storage("float32", torch.float32),
    "int8": Storage("int8", torch.int8, 8),
    "int4": Storage("int4", torch.uint8, 4),
}


QUANTISED = tuple(name for name, storage in STORAGE.items() if storage.bits)


MEASURED_IN_4_BIT = ("smollm2-135m-instruct", "Qwen2.5-Coder-0.5B-Instruct")
"""Models for which the cost of the 4-bit format has been measured (docs/fidelity.md)."""


DEFAULT_STORAGE = "int8"
"""This format takes half the bytes of 16-bit formats, without a measurable loss (docs/fidelity.md)."""


def storage_named(name: str | None) -> Storage:
    """Return the number format of this name, or the default for None. Raises `InputError` for an unknown name."""
    found = STORAGE.get(DEFAULT_STORAGE if name is None else name)
    if found is None:
        raise InputError(f"storage must be one of {', '.join(STORAGE)}; got {name!r}.")
    return found


@dataclass(frozen=True, eq=False)
class Quantised:
    """Quantised numbers [L, H, T, D], in blocks of up to 64 along dimension `dim`."""

    codes: Tensor
    """int8 [L, H, T, D], or uint8 [L, H, T, ceil(D / 2)] for 4 bits."""
    steps: Tensor
    """float16, in the shape of the numbers, but with one step per block along `dim`."""
    lows: Tensor | None
    """float16, the smallest number of each block; None for 8 bits."""
    width: int
    """D, the size of the last dimension."""
    dim: int
    """Dimension along which the blocks run, -2 or -1."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the numbers."""
        return torch.Size((*self.codes.shape[:3], self.width))

    @property
    def ndim(self) -> int:
        """Number of dimensions, 4."""
        return self.codes.ndim

    @property
    def nbytes(self) -> int:
        """Size of codes, steps and smallest numbers in bytes."""
        return self.codes.nbytes + self.steps.nbytes + (0 if self.lows is None else self.lows.nbytes)

    def to(self, *, device: torch.device, non_blocking: bool = False) -> Quantised:
        """Return the same numbers on a device."""
        codes, steps = (part.to(device, non_blocking=non_blocking) for part in (self.codes, self.steps))
        lows = None if self.lows is None else self.lows.to(device, non_blocking=non_blocking)
        return replace(self, codes=codes, steps=steps, lows=lows)

    def first(self, count: int) -> Quantised:
        """Return the first `count` of the T tokens. The result shares the memory."""
        blocks = -(-count // BLOCK) if self.dim == -2 else count
        lows = None if self.lows is None else self.lows[:, :, :blocks]
        return replace(self, codes=self.codes[:, :, :count], steps=self.steps[:, :, :blocks], lows=lows)

    def block(self, start: int) -> Tensor:
        """Dequantise up to 64 of the T tokens. start: the first one, a multiple of 64. Returns float32 [L, H, t, D]."""
        some = slice(start, start + BLOCK)
        own = slice(start // BLOCK, start // BLOCK + 1) if self.dim == -2 else some
        codes = self.codes[:, :, some] if self.lows is None else _unpacked(self.codes[:, :, some], self.width)
        numbers = codes.float().mul_(self._spread(self.steps[:, :, own]))
        return numbers if self.lows is None else numbers.add_(self._spread(self.lows[:, :, own]))

    def _spread(self, blocks: Tensor) -> Tensor:
        """Return float32 numbers, one per block, that broadcast over the numbers of their blocks."""
        return _spread(blocks.float(), self.width, -1) if self.dim == -1 else blocks.float()


def quantize(numbers: Tensor, bits: int, dim: int) -> Quantised:
    """Quantise numbers [L, H, T, D] to 8 or 4 bits by blocks along `dim`.

    The error of a number is at most about half a step. With 4 bits it is larger in blocks whose numbers are far from
    zero, because the smallest number of the block is rounded.
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
    """Yield pairs of a slice of T and the numbers [L, H, t, D] in it, which together cover all numbers [L, H, T, D].

    A tensor is yielded as a whole. Quantised numbers are dequantised to float32 block by block, so that each block
    stays in the processor's cache.
    """
    if isinstance(numbers, Tensor):
        yield slice(None), numbers
        return
    for start in range(0, numbers.shape[2], BLOCK):
        yield slice(start, start + BLOCK), numbers.block(start)


def dense(numbers: Tensor | Quantised) -> Tensor:
    """Return numbers as a tensor. Quantised numbers are dequantised to float32."""
    if isinstance(numbers, Tensor):
        return numbers
    return torch.cat([block for _, block in blocks_of(numbers)], dim=2)


def _spread(blocks: Tensor, length: int, dim: int) -> Tensor:
    """Repeat the number of each block for all its numbers. A single block is returned unchanged, to broadcast."""
    if blocks.shape[dim] == 1:
        return blocks
    return blocks.repeat_interleave(BLOCK, dim).narrow(dim, 0, length)


def _packed(codes: Tensor) -> Tensor:
    if codes.shape[-1] % 2:
        codes = torch.cat((codes, torch.zeros_like(codes[..., :1])), -1)
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def _unpacked(packed: Tensor, width: int) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :width]
