"""Moving cached states to other positions: rotation by a position difference.

Rotary embedding turns each frequency pair of a key by `position × inv_freq`. A key made at position p
therefore becomes the key at p + Δ by one further turn of `Δ × inv_freq`, whatever came before the rotation
(RoFormer, arXiv 2104.09864, section 3.2). Scaling factors on cos and sin (YaRN) are already in the key and must
not be applied again, so only the bare frequencies are used here.

Pure functions on tensors. This file knows neither models nor packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Rotation", "rotate_into"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the states of a layer turn with position."""

    tensor: Literal["keys", "values"]
    """Which of the two cached tensors carries positions (latent attention caches its rotary part as values)."""
    layout: Literal["half", "interleaved"]
    """Whether pair i is the dimensions (i, i + n) or (2i, 2i + 1)."""
    offset: int
    """First rotated dimension; those before it and after `offset + 2n` are copied."""
    inv_freq: Tensor
    """n angular frequencies in radians per position, float64, on the CPU."""

    @property
    def width(self) -> int:
        """Number of rotated dimensions, 2n."""
        return 2 * self.inv_freq.numel()


def _pairs(states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Split the rotated dimensions into the first and second member of every pair (views)."""
    part = states[..., rotation.offset : rotation.offset + rotation.width]
    if rotation.layout == "interleaved":
        return part[..., 0::2], part[..., 1::2]
    half = rotation.width // 2
    return part[..., :half], part[..., half:]


def rotate_into(out: Tensor, states: Tensor, rotation: Rotation, delta: int) -> None:
    """Write `states`, moved by `delta` positions, into `out`.

    out, states: [..., T, D]; all T tokens move by the same difference, so one angle per pair serves the
    whole packet. Computed in float32 (float64 for float64 states) from angles in float64, and rounded once,
    on the write into `out`.
    """
    if delta == 0:
        out.copy_(states)
        return
    angles = rotation.inv_freq * delta
    compute = torch.float64 if states.dtype == torch.float64 else torch.float32
    cos = angles.cos().to(device=states.device, dtype=compute)
    sin = angles.sin().to(device=states.device, dtype=compute)
    first, second = (part.to(compute) for part in _pairs(states, rotation))
    # Each view of `out` is taken when it is written to: autograd loses views that are older than the last write.
    _pairs(out, rotation)[0].copy_((first * cos).addcmul_(second, sin, value=-1))
    _pairs(out, rotation)[1].copy_((second * cos).addcmul_(first, sin))
    end = rotation.offset + rotation.width
    if rotation.offset:
        out[..., : rotation.offset].copy_(states[..., : rotation.offset])
    if end < states.shape[-1]:
        out[..., end:].copy_(states[..., end:])
