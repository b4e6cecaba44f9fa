"""What a packet is: the frozen states of one chunk, and the identity that says when it may be served.

Shape letters, here and everywhere: L layers of a group, B rows, H key/value heads, T tokens, D head dimension.
This file knows nothing of models, files or databases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from kvpacket_rag.errors import InputError, MismatchError
from kvpacket_rag.quantised import Quantised
from kvpacket_rag.rope import Rotation

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FORMAT_VERSION",
    "Fingerprint",
    "GroupStates",
    "LayerGroup",
    "LoadedPackets",
    "Packet",
    "StateLayout",
    "check_chunks",
    "content_hash",
    "short_hash",
]

FORMAT_VERSION = 1
"""Version of the bytes of a packet on disk; part of every fingerprint."""


def canonical(value: object) -> bytes:
    """Encode a JSON value so that equal values give equal bytes in every process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def content_hash(token_ids: tuple[int, ...]) -> str:
    """Hash of a chunk's token ids: what two chunks of equal text have in common."""
    return hashlib.sha256(canonical(list(token_ids))).hexdigest()


def short_hash(data: bytes) -> str:
    """Hash of bytes, long enough to tell apart what one store ever meets."""
    return hashlib.sha256(data).hexdigest()[:16]


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


@dataclass(frozen=True)
class Fingerprint:
    """Everything the states of a packet depend on besides its own tokens.

    Each field is a short hash or a word. Two packets may stand in one context only if their fingerprints
    agree on all fields but `anchor`.
    """

    namespace: str
    """Whose packet it is; equal text in two namespaces gives two packets."""
    model: str
    """Configuration of the model."""
    weights: str
    """A sample of every weight tensor."""
    compute: str
    """Number format the model computed in."""
    tokenizer: str
    """Vocabulary and rules of the tokenizer."""
    rope: str
    """Rotation rule and frequencies of every layer."""
    cache: str
    """Layout of cached states in this release of transformers (which tensors, which shapes)."""
    anchor: str
    """Token ids of the context that the chunk saw."""
    adapter: str
    """Header and trailer embeddings around the chunk."""
    storage: str
    """Number format at rest."""
    format: int = FORMAT_VERSION
    """Version of the packet's bytes."""

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical bytes of all fields."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    def packet_key(self, content: str) -> str:
        """Name of the packet of a chunk with content hash `content` under this fingerprint."""
        return hashlib.sha256(canonical([self.digest, content])).hexdigest()

    def check(self, found: Fingerprint, what: str) -> None:
        """Raise `MismatchError` naming the first field in which `found` differs from this fingerprint."""
        for field in fields(self):
            expected, came = getattr(self, field.name), getattr(found, field.name)
            if expected != came:
                raise MismatchError(
                    f"{what}, and they differ in {field.name}: expected {expected!r}, found {came!r}. "
                    "Open the store with the model it was built with, or build another store with this one.",
                    field=field.name,
                    expected=expected,
                    found=came,
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
