"""Rotation: move cached states to other positions by a position difference.

Rotary embedding rotates each frequency pair of a key by `position × inv_freq`. A key computed at position p therefore
becomes the key at p + Δ by one further rotation of `Δ × inv_freq`, regardless of the computation before the rotation
(RoFormer, arXiv 2104.09864, section 3.2). The scaling factors on cos and sin (YaRN) are already part of the key and
must not be applied again, so this module uses only the bare frequencies.

The functions are pure functions on tensors. This module does not depend on models or packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Rotation", "rotate_into"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the states of a layer are rotated with their position."""

    tensor: Literal["keys", "values"]
    """The cached tensor that depends on the position (latent attention caches its rotary part as values)."""
    layout: Literal["half", "interleaved"]
    """Dimensions of pair i: (i, i + n) for "half", (2i, 2i + 1) for "interleaved"."""
    offset: int
    """First rotated dimension. The dimensions before it and from `offset + 2n` on are copied."""
    inv_freq: Tensor
    """n angular frequencies in radians per position, float64, on the CPU."""

    @property
    def width(self) -> int:
        """Number of rotated dimensions, 2n."""
        return 2 * self.inv_freq.numel()


def _pairs(states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Split the rotated dimensions into the first and the second members of all pairs (views)."""
    part = states[..., rotation.offset : rotation.offset + rotation.width]
    if rotation.layout == "interleaved":
        return part[..., 0::2], part[..., 1::2]
    half = rotation.width // 2
    return part[..., :half], part[..., half:]


def rotate_into(out: Tensor, states: Tensor, rotation: Rotation, delta: int) -> None:
    """Write `states`, rotated by `delta` positions, into `out`.

    The rotation is computed in float32 (float64 for float64 states) from angles in float64. The result is rounded once,
    when it is written into `out`.
    out, states: tensors [..., T, D]. All T tokens move by the same difference, so one angle per pair serves the whole
    packet.
    """
    if delta == 0:
        out.copy_(states)
        return
    angles = rotation.inv_freq * delta
    compute = torch.float64 if states.dtype == torch.float64 else torch.float32
    cos = angles.cos().to(device=states.device, dtype=compute)
    sin = angles.sin().to(device=states.device, dtype=compute)
    first, second = (part.to(compute) for part in _pairs(states, rotation))
    # Each view of `out` is created only when it is written, as autograd loses views that are older than the last write.
    _pairs(out, rotation)[0].copy_((first * cos).addcmul_(second, sin, value=-1))
    _pairs(out, rotation)[1].copy_((second * cos).addcmul_(first, sin))
    end = rotation.offset + rotation.width
    if rotation.offset:
        out[..., : rotation.offset].copy_(states[..., : rotation.offset])
    if end < states.shape[-1]:
        out[..., end:].copy_(states[..., end:])
