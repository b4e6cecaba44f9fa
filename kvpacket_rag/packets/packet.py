"""What a packet is: the frozen states of one chunk, and the identity that says when it may be served.

Shape letters, here and everywhere: L layers of a group, B rows, H key/value heads, T tokens, D head dimension.
This file knows nothing of models, files or databases.
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
    """Raise `InputError` if a chunk is empty, or does not fit `positions` behind `anchor` tokens with `extra` slots."""
    for index, length in enumerate(lengths):
        if not length:
            raise InputError(f"Chunk {index} has no tokens; skip empty chunks before encoding.")
        if anchor + extra + length > positions:
            raise InputError(
                f"Chunk {index} has {length} tokens; with an anchor of {anchor} and {extra} adapter slots the model's "
                f"{positions} positions are exceeded. Split it into smaller chunks."
            )


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers whose states have one shape and turn by one rule, so that they are kept in one tensor."""

    layers: tuple[int, ...]
    key_shape: tuple[int, int]
    """(H, D) of the cached keys."""
    value_shape: tuple[int, int]
    """(H, D) of the cached values."""
    rotation: Rotation | None
    """None for layers without positions in their states."""


@dataclass(frozen=True, eq=False)
class StateLayout:
    """The groups of a model, in order of their first layer. Layers in no group cache nothing."""

    groups: tuple[LayerGroup, ...]
    n_layers: int


@dataclass(frozen=True, eq=False)
class GroupStates:
    """Keys [L, H, T, D] and values [L, H, T, D'] of one layer group, as tensors or in few bits."""

    keys: Tensor | Quantised
    values: Tensor | Quantised

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.keys.nbytes + self.values.nbytes

    def quantised(self, bits: int) -> tuple[Quantised, Quantised]:
        """Keys and values, quantised to 8 or 4 bits. Raises `InputError` for numbers float16 cannot hold."""
        keys, values = dense(self.keys), dense(self.values)
        if not all(part.isfinite().all() and part.abs().max() < 6e4 for part in (keys, values)):
            raise InputError(
                "Some states are too large to quantise. Open the store with storage='bfloat16' or 'float32'."
            )
        return quantize(keys, bits, TOKENS), quantize(values, bits, CHANNELS)

    def first(self, count: int) -> GroupStates:
        """The first `count` of T, sharing memory."""
        keys, values = (
            p.first(count) if isinstance(p, Quantised) else p[:, :, :count] for p in (self.keys, self.values)
        )
        return GroupStates(keys, values)


@dataclass(frozen=True, eq=False)
class Packet:
    """The immutable states of `[header · chunk tokens · trailer]`, as computed behind an anchor.

    Nothing in this package writes to `states`; assembly copies out of it.
    """

    token_ids: tuple[int, ...]
    """The chunk's own tokens; header and trailer have none."""
    header: int
    """Number of header embeddings before the chunk tokens."""
    trailer: int
    """Number of trailer embeddings after them."""
    base_position: int
    """Position of the first state when it was computed; rotation starts from here, always."""
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
        """Bytes of all states."""
        return sum(states.nbytes for states in self.states)

    def cut(self, tokens: int) -> Packet:
        """Give the packet of the chunk's first `tokens` tokens, sharing memory: no token saw those behind it.

        Raises `InputError` if the chunk has fewer.
        """
        if not 0 < tokens <= len(self.token_ids):
            raise InputError(f"A packet of {len(self.token_ids)} tokens can be cut to 1 to as many; got {tokens}.")
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
    """Packets in the order asked for."""

    packets: tuple[Packet, ...]
    built: int
    """How many were not stored and had to be built."""
