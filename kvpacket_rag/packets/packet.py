"""Packets: the frozen states of one chunk with its content hash, and the layout of the states that a model caches.

Shape letters, here and everywhere: L layers of a group, B rows, H key/value heads, T tokens, D head dimension.
This module does not depend on models, files or databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.fingerprint import content_hash
from kvpacket_rag.packets.number_formats import CHANNELS, TOKENS, Quantised, dense, quantize
from kvpacket_rag.packets.rope import Rotation

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GroupStates", "LayerGroup", "LoadedPackets", "Packet", "StateLayout", "check_chunks"]


def check_chunks(lengths: Sequence[int], anchor: int, extra: int, positions: int) -> None:
    """Raise `InputError` if a chunk is empty or too long for the model.

    lengths: number of tokens of each chunk. anchor: number of tokens before each chunk. extra: number of adapter slots
    around each chunk. positions: number of positions of the model.
    """
    for index, length in enumerate(lengths):
        if not length:
            raise InputError(f"Chunk {index} has no tokens; skip empty chunks before encoding.")
        if anchor + extra + length > positions:
            raise InputError(
                f"Chunk {index} has {length} tokens. With an anchor of {anchor} tokens and {extra} adapter slots, it "
                f"exceeds the model's {positions} positions. Split it into smaller chunks."
            )


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers whose states have the same shape and rotation rule, so that they are stored in one tensor."""

    layers: tuple[int, ...]
    key_shape: tuple[int, int]
    """(H, D) of the cached keys."""
    value_shape: tuple[int, int]
    """(H, D) of the cached values."""
    rotation: Rotation | None
    """The rotation rule; None for layers whose states do not depend on the position."""


@dataclass(frozen=True, eq=False)
class StateLayout:
    """The layer groups of a model, in order of their first layer. Layers that are in no group cache nothing."""

    groups: tuple[LayerGroup, ...]
    n_layers: int


@dataclass(frozen=True, eq=False)
class GroupStates:
    """Keys [L, H, T, D] and values [L, H, T, D'] of one layer group, as tensors or quantised."""

    keys: Tensor | Quantised
    values: Tensor | Quantised

    @property
    def nbytes(self) -> int:
        """Size of keys and values in bytes."""
        return self.keys.nbytes + self.values.nbytes

    def quantised(self, bits: int) -> tuple[Quantised, Quantised]:
        """Return keys and values in 8 or 4 bits. Raises `InputError` for numbers that float16 cannot hold."""
        keys, values = dense(self.keys), dense(self.values)
        if not all(part.isfinite().all() and part.abs().max() < 6e4 for part in (keys, values)):
            raise InputError(
                "Some states are too large to quantise. Open the store with storage='bfloat16' or 'float32'."
            )
        return quantize(keys, bits, TOKENS), quantize(values, bits, CHANNELS)

    def first(self, count: int) -> GroupStates:
        """Return the first `count` of the T tokens. The result shares the memory."""
        keys, values = (
            p.first(count) if isinstance(p, Quantised) else p[:, :, :count] for p in (self.keys, self.values)
        )
        return GroupStates(keys, values)


@dataclass(frozen=True, eq=False)
class Packet:
    """The immutable states of `[header · chunk tokens · trailer]`, as computed after an anchor.

    Nothing in this package writes to `states`. Assembly copies them.
    """

    token_ids: tuple[int, ...]
    """Token ids of the chunk. Header and trailer have no token ids."""
    header: int
    """Number of header embeddings before the chunk tokens."""
    trailer: int
    """Number of trailer embeddings after the chunk tokens."""
    base_position: int
    """Position of the first state when it was computed. Every rotation starts from this position."""
    states: tuple[GroupStates, ...]
    """One entry for each group of the model's `StateLayout`."""

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise InputError("A packet needs at least one token, got none. Skip empty chunks before encoding.")
        for states in self.states:
            for tensor in (states.keys, states.values):
                if tensor.ndim != 4 or tensor.shape[2] != self.length:
                    raise InputError(
                        f"Packet states must be [L, H, {self.length}, D] for {self.header} header, {len(self.token_ids)} chunk "
                        f"and {self.trailer} trailer slots; got {tuple(tensor.shape)}."
                    )

    @property
    def length(self) -> int:
        """Number of cache slots, T: header, chunk tokens and trailer."""
        return self.header + len(self.token_ids) + self.trailer

    @property
    def nbytes(self) -> int:
        """Size of all states in bytes."""
        return sum(states.nbytes for states in self.states)

    def cut(self, tokens: int) -> Packet:
        """Return the packet of the chunk's first `tokens` tokens. It shares the memory.

        A shorter packet has no trailer. Its states stay valid, because no token attends to later tokens. Raises
        `InputError` if the chunk has fewer tokens.
        """
        if not 0 < tokens <= len(self.token_ids):
            raise InputError(
                f"A packet of {len(self.token_ids)} tokens can be cut to any length from 1 to that number; got {tokens}."
            )
        if tokens == len(self.token_ids):
            return self
        end = self.header + tokens
        states = tuple(group.first(end) for group in self.states)
        return Packet(self.token_ids[:tokens], self.header, 0, self.base_position, states)

    @cached_property
    def content(self) -> str:
        """Hash of the chunk's token ids."""
        return content_hash(self.token_ids)


@dataclass(frozen=True, eq=False)
class LoadedPackets:
    """Packets in the order in which they were requested."""

    packets: tuple[Packet, ...]
    built: int
    """Number of packets that were not stored and had to be built."""
    healed: int = 0
    """Number of packets that were damaged and were rebuilt from the text of their chunk."""
