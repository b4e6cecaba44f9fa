"""The `Engine` protocol: everything that the parts above use of a model, whichever library runs it.

An engine encodes chunks after an anchor, places packets in a cache, runs tokens over it, and describes the model. The
scheduler, the store and the answering parts use this protocol and do not depend on any particular engine. Shape
letters: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvpacket_rag.engine.chat import TextCodec
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.fingerprint import Fingerprint
from kvpacket_rag.packets.packet import GroupStates, Packet

__all__ = ["ContextCache", "Engine"]


class ContextCache(Protocol):
    """The KV cache of one or more contexts, allocated once by an engine. Only that engine may use it."""

    @property
    def length(self) -> int:
        """Number of filled slots."""

    @property
    def slots(self) -> int:
        """Number of slots, filled or not."""

    def place(self, states: tuple[GroupStates, ...], delta: int) -> None:
        """Append states to every row. Their keys are rotated by `delta` positions."""

    def reserve(self, count: int) -> None:
        """Count the next `count` slots as filled. Their states must be written before they are used."""

    def clear(self, start: int, stop: int, row: int) -> None:
        """Set slots [start, stop) of a row to zero, so that masked slots hold no NaN."""

    def view(self, row: int, start: int, length: int = 0) -> ContextCache:
        """Return one row from slot `start` on as a cache. It shares the memory and has `length` filled slots."""

    def filled(self, length: int) -> ContextCache:
        """Return a cache that shares the memory and counts the first `length` slots as filled."""


@runtime_checkable
class Engine(Protocol):
    """A frozen causal language model whose cached states can be moved. Threads may share one engine."""

    @property
    def name(self) -> str:
        """Name of the model in messages and adapter cards."""

    @property
    def source(self) -> str:
        """Name, id or absolute path from which the model can be loaded again."""

    @property
    def text(self) -> TextCodec:
        """Tokenizer and chat template."""

    @property
    def adapter(self) -> Adapter:
        """The adapter in use; its parts are empty if there is none."""

    @property
    def adapter_identity(self) -> dict[str, Any]:
        """What an adapter must have been trained for: architecture, hidden size, tokenizer and name."""

    @property
    def max_positions(self) -> int:
        """Largest number of tokens in a context, question and answer included."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""

    @property
    def weights_hash(self) -> str:
        """Hash of a sample of every weight."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format that the model computes in."""

    @property
    def device(self) -> torch.device:
        """Device that computes the logits."""

    def with_adapter(self, adapter: Adapter | None) -> Engine:
        """Return the same model with another adapter or none. Raises `AdapterError` for an adapter of another model."""

    def fingerprint(self, *, namespace: str, anchor: Sequence[int], storage: str) -> Fingerprint:
        """Return the fingerprint of packets that are encoded after `anchor` and stored as `storage`."""

    def encode(
        self, chunks: Sequence[Sequence[int]], *, anchor: Sequence[int] = (), storage: torch.dtype | None = None
    ) -> list[Packet]:
        """Encode chunks, given as token ids, into packets. The packets are in the order of the chunks."""

    def encode_each(
        self, chunks: Sequence[Sequence[int]], *, anchor: Sequence[int] = (), storage: torch.dtype | None = None
    ) -> Iterator[tuple[int, Packet]]:
        """Encode chunks in batches, and yield (index, packet) for each chunk when its batch ends."""

    def prefix_states(self, ids: Sequence[int]) -> tuple[GroupStates, ...]:
        """Return the states of a token sequence that opens many contexts. They are computed once and then cached."""

    def has_prefix_states(self, ids: Sequence[int]) -> bool:
        """Return whether the `prefix_states` of these ids are cached."""

    def allocate(self, slots: int, rows: int = 1) -> ContextCache:
        """Allocate an empty cache for `rows` contexts of up to `slots` tokens."""

    def forward(
        self, cache: Any, ids: Sequence[int] | Tensor, *, bridge: Tensor | None = None, positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Run tokens after the filled slots and write their states.

        ids: n token ids, or a tensor [B, n]. bridge: embeddings [m, hidden] that run before the tokens. positions:
        position of each token, [B, n]. The default is the number of its slot. mask: a tensor [B, filled + n] that is 0
        at slots to ignore. Returns float32 logits [B, vocabulary] of the last token.
        """

    def logits(
        self, cache: Any, ids: Sequence[int] | Tensor, *, keep: int, bridge: Tensor | None = None,
        positions: Tensor | None = None, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Run tokens as `forward` does. Returns float32 logits [B, keep, vocabulary] of the last `keep` tokens."""

    def recompute(self, cache: Any, slots: Tensor, ids: Tensor, *, soft: Tensor | None = None, keep: int = 0) -> Tensor:
        """Run tokens `ids` [n] at filled or reserved slots `slots` [n] of one context, and write their states there.

        soft: embeddings [m, hidden] of the m ids below 0. Returns float32 logits [keep, vocabulary] of the last `keep`
        tokens.
        """

    def synchronize(self) -> None:
        """Wait until the device has finished its work, so that time measurements are correct."""
