"""The KV cache that a model writes into: allocated once, filled by slices, never concatenated.

There is one buffer per layer group, [L, B, H, T, D], so that placing a whole packet takes a few operations instead of a
few per layer. Each layer sees its own slice [B, H, T, D]. Sliding-window layers keep every slot as well, because the
model's own mask limits what they attend to.

`GrowingCache` holds the same states for training. Gradients cannot pass through a buffer that is written in place, so
each of its layers concatenates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from kvpacket_rag.engine.protocol import ContextCache
from kvpacket_rag.engine.transformers.buffer_pool import BufferPool, Lease
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.number_formats import blocks_of, dense
from kvpacket_rag.packets.packet import GroupStates, LayerGroup, StateLayout
from kvpacket_rag.packets.rope import rotate_into

__all__ = ["GrowingCache", "SlotCache", "slot_cache"]


class _Slots(CacheLayerMixin):  # type: ignore[misc]
    """One layer's view of a group buffer. Its first `length` slots are filled."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()
        self.keys, self.values, self.length = keys, values, length
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing, because the buffer exists from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new states [B, H, T, D] after the filled slots, and return all filled slots (views)."""
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            raise InputError(
                f"The context has {self.keys.shape[-2]} slots, but {end} are needed. Allocate it with more slots."
            )
        self.keys[:, :, self.length : end].copy_(key_states)
        self.values[:, :, self.length : end].copy_(value_states)
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of the keys after the next write, and the position of the first key."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of filled slots."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1, which means "no fixed length": the returned views grow with every write."""
        return -1


@dataclass(frozen=True, eq=False)
class _Buffer:
    keys: Tensor
    values: Tensor


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of B contexts with room for `slots` tokens each."""

    def __init__(
        self, layout: StateLayout, buffers: tuple[_Buffer, ...], length: int, lease: Lease | None = None
    ) -> None:
        self.layout, self._buffers, self._lease = layout, buffers, lease
        layers: list[Any] = [DummyLayer() for _ in range(layout.n_layers)]
        for group, buffer in zip(layout.groups, buffers, strict=True):
            for row, layer in enumerate(group.layers):
                layers[layer] = _Slots(buffer.keys[row], buffer.values[row], length)
        self._first = layout.groups[0].layers[0]
        super().__init__(layers=layers)

    @classmethod
    def allocate(
        cls,
        layout: StateLayout,
        rows: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: BufferPool | None = None,
    ) -> SlotCache:
        """Allocate an empty cache of `rows` contexts with `slots` slots each. Its memory is not initialised.

        memory: the pool that provides the memory if `device` is a CPU. The memory returns to the pool when this cache
        and all caches that share its memory have ended.
        """

        def shapes(group: LayerGroup) -> list[tuple[int, ...]]:
            return [
                (len(group.layers), rows, heads, slots, width) for heads, width in (group.key_shape, group.value_shape)
            ]

        if memory is None or device.type != "cpu":
            buffers = [_Buffer(*(torch.empty(s, dtype=dtype, device=device) for s in shapes(g))) for g in layout.groups]
            return cls(layout, tuple(buffers), 0)
        numbers = sum(math.prod(shape) for group in layout.groups for shape in shapes(group))
        lease = memory.lease(numbers * dtype.itemsize)
        buffers = [_Buffer(*(lease.take(shape, dtype) for shape in shapes(group))) for group in layout.groups]
        return cls(layout, tuple(buffers), 0, lease)

    @property
    def length(self) -> int:
        """Number of filled slots."""
        return int(self.layers[self._first].get_seq_length())

    @property
    def slots(self) -> int:
        """Number of slots, filled or not."""
        return int(self._buffers[0].keys.shape[3])

    @property
    def rows(self) -> int:
        """Number of contexts, B."""
        return int(self._buffers[0].keys.shape[1])

    def view(self, row: int, start: int, length: int = 0) -> SlotCache:
        """Return a cache of one context that shares row `row` from slot `start` on and has `length` filled slots."""
        buffers = tuple(
            _Buffer(b.keys[:, row : row + 1, :, start:], b.values[:, row : row + 1, :, start:]) for b in self._buffers
        )
        return SlotCache(self.layout, buffers, length, self._lease)

    def filled(self, length: int) -> SlotCache:
        """Return a cache that shares the memory and counts the first `length` slots as filled."""
        return SlotCache(self.layout, self._buffers, length, self._lease)

    def compact(self, slots: Tensor) -> SlotCache:
        """Move the slots `slots` [n], in ascending order, to the front. The result counts only them as filled."""
        index = slots.to(self._buffers[0].keys.device)
        for buffer in self._buffers:
            for tensor in (buffer.keys, buffer.values):
                tensor[..., : len(index), :].copy_(tensor.index_select(3, index))
        return self.filled(len(index))

    def layer_states(self, number: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, slots, D] (views) of the `number`-th layer of those that cache anything."""
        owning = sorted(layer for group in self.layout.groups for layer in group.layers)
        layer = self.layers[owning[min(number, len(owning) - 1)]]
        return layer.keys, layer.values

    def clear(self, start: int, stop: int, row: int) -> None:
        """Set slots [start, stop) of a row to zero, because the uninitialised memory of masked slots may hold NaN."""
        for buffer in self._buffers:
            buffer.keys[:, row, :, start:stop].zero_()
            buffer.values[:, row, :, start:stop].zero_()

    def place(self, states: tuple[GroupStates, ...], delta: int) -> None:
        """Append states to every row, rotated by `delta` positions. Each number is read once and written once."""
        start = self.length
        end = start + states[0].keys.shape[2]
        if end > self.slots:
            raise InputError(f"The context has {self.slots} slots, but {end} are needed. Allocate it with more slots.")
        for group, buffer, new in zip(self.layout.groups, self._buffers, states, strict=True):
            rotation = group.rotation
            for name, out, source in (
                ("keys", buffer.keys[..., start:end, :], new.keys),
                ("values", buffer.values[..., start:end, :], new.values),
            ):
                turned = rotation if rotation is not None and rotation.tensor == name and delta else None
                for part, numbers in blocks_of(source.to(device=out.device, non_blocking=True)):
                    target = out[..., part, :]
                    if turned is not None:
                        rotate_into(target, numbers.unsqueeze(1).expand_as(target), turned, delta)
                    else:
                        target.copy_(numbers.unsqueeze(1))
        self._fill(end)

    def reserve(self, count: int) -> None:
        """Count the next `count` slots as filled. Their states must be written before they are used."""
        if self.length + count > self.slots:
            raise InputError(
                f"The context has {self.slots} slots, but {self.length + count} are needed. Allocate it with more slots."
            )
        self._fill(self.length + count)

    def _fill(self, length: int) -> None:
        for layer in self.layers:
            if isinstance(layer, _Slots):
                layer.length = length

    def read(self, row: int, start: int, stop: int, dtype: torch.dtype) -> tuple[GroupStates, ...]:
        """Return a copy of slots [start, stop) of a row, one `GroupStates` per group, in number format `dtype`."""

        def copy(buffer: Tensor) -> Tensor:
            return buffer[:, row, :, start:stop].to(dtype=dtype, copy=True, memory_format=torch.contiguous_format)

        return tuple(GroupStates(copy(b.keys), copy(b.values)) for b in self._buffers)


def slot_cache(cache: ContextCache) -> SlotCache:
    """Return `cache` with its type, `SlotCache`. Raises `InputError` for a cache of another engine."""
    if not isinstance(cache, SlotCache):
        raise InputError(
            f"The transformers engine needs a cache that it allocated, got {type(cache).__name__}. Use `model.allocate`."
        )
    return cache


class _Grown(_Slots):
    """One layer's states as separate tensors that grow with every write."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Concatenate new states [B, H, T, D] and return all states."""
        self.keys = torch.cat((self.keys, key_states), dim=-2)
        self.values = torch.cat((self.values, value_states), dim=-2)
        self.length = self.keys.shape[-2]
        return self.keys, self.values


class GrowingCache(SlotCache):
    """A KV cache that gradients can pass through, because nothing is written in place."""

    def __init__(self, layout: StateLayout, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        """Create an empty cache of `rows` contexts."""
        empty = SlotCache.allocate(layout, rows, 0, dtype, device)
        super().__init__(layout, empty._buffers, 0)
        for number, layer in enumerate(self.layers):
            if isinstance(layer, _Slots):
                self.layers[number] = _Grown(layer.keys, layer.values, 0)

    @property
    def slots(self) -> int:
        """Number of filled slots. More slots are added when they are needed."""
        return self.length

    def place(self, states: tuple[GroupStates, ...], delta: int) -> None:
        """Append states to every row, rotated by `delta` positions."""
        for group, new in zip(self.layout.groups, states, strict=True):
            moved = {"keys": dense(new.keys), "values": dense(new.values)}
            if group.rotation is not None and delta:
                source = moved[group.rotation.tensor]
                turned = torch.empty_like(source)
                rotate_into(turned, source, group.rotation, delta)
                moved[group.rotation.tensor] = turned
            for row, layer in enumerate(group.layers):
                keys, values = (moved[name][row].expand(self.rows, -1, -1, -1) for name in ("keys", "values"))
                slots = self.layers[layer]
                slots.update(keys.to(slots.keys), values.to(slots.values))

    def read(self, row: int, start: int, stop: int, dtype: torch.dtype) -> tuple[GroupStates, ...]:
        """Return slots [start, stop) of a row, one `GroupStates` per group, in number format `dtype`."""

        def stack(layers: tuple[int, ...], name: str) -> Tensor:
            return torch.stack([getattr(self.layers[n], name)[row, :, start:stop] for n in layers]).to(dtype)

        return tuple(GroupStates(stack(g.layers, "keys"), stack(g.layers, "values")) for g in self.layout.groups)
