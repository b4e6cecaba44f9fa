"""Assembly of packets into a context, with one allocation. Every state is read once and written once.

`assemble` places packets and leaves room for the text between them. `ask` computes that text in one pass together with
the question. `prefill` computes the same tokens from scratch. `assemble` and `prefill` both produce a `Context`, and
code that uses a context cannot tell which of them made it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvpacket_rag.engine.protocol import ContextCache, Engine
from kvpacket_rag.errors import BudgetError
from kvpacket_rag.packets.packet import Packet

__all__ = ["SOFT_TOKEN", "Context", "Method", "Need", "Segment", "ask", "assemble", "fit", "prefill"]

SOFT_TOKEN = -1
"""Marks a header, trailer or bridge slot in lists of token ids."""


@dataclass(eq=False)
class Context:
    """A KV cache that is ready for the question, with the ids of the tokens in it."""

    cache: ContextCache
    token_ids: list[int]
    """Token ids of all filled slots. Slots of embeddings without a token id have `SOFT_TOKEN`."""
    reused: int
    """Number of slots filled from packets or from a cached prefix."""
    computed: int
    """Number of slots filled by running the model for this context."""
    pending: list[int] = field(default_factory=list)
    """Slots of text between packets. `ask` computes their states together with those of the question."""


Segment = Packet | tuple[int, ...]
"""A piece of a context: a packet, or the token ids of text that has no packet."""


@dataclass(frozen=True)
class Need:
    """Numbers of slots that a question needs besides its packets."""

    prefix: int
    tail: int
    answer: int

    @property
    def total(self) -> int:
        """Total number of slots."""
        return self.prefix + self.tail + self.answer


def fit(lengths: Sequence[int], need: Need, limit: int) -> int:
    """Return how many packets fit into `limit` positions. The packets with the lowest rank are left out.

    lengths: lengths of the packets in order of rank. Raises `BudgetError` with the numbers if not even the question
    fits.
    """
    room = limit - need.total
    if room < 0:
        raise BudgetError(
            f"The question does not fit: prefix {need.prefix} + question {need.tail} + answer {need.answer} = {need.total} tokens, "
            f"but the model has {limit} positions. Shorten the question or lower max_new_tokens."
        )
    totals = itertools.accumulate(lengths)
    return sum(1 for total in totals if total <= room)


def _slot_ids(packet: Packet) -> list[int]:
    return [SOFT_TOKEN] * packet.header + list(packet.token_ids) + [SOFT_TOKEN] * packet.trailer


def assemble(
    model: Engine,
    prefix: Sequence[int],
    segments: Sequence[Segment],
    *,
    room: int,
    cache: ContextCache | None = None,
) -> Context:
    """Place the prefix and the packets one after another, with the keys rotated to their new positions.

    The packets are not modified.
    prefix: token ids that open many contexts. Their states are cached for the next context. segments: packets, and the
    text between them, which `ask` computes. room: number of slots to leave for question and answer. cache: an empty
    cache of one row to fill. The default is a new one.
    """
    length = len(prefix) + sum(_length(segment) for segment in segments)
    _check(model, length + room)
    cache = cache if cache is not None else model.allocate(length + room)
    kept = model.has_prefix_states(prefix) if prefix else True
    if prefix:
        cache.place(model.prefix_states(prefix), delta=0)
    context = Context(cache, list(prefix), reused=len(prefix) if kept else 0, computed=0 if kept else len(prefix))
    for segment in segments:
        if isinstance(segment, Packet):
            cache.place(segment.states, delta=cache.length - segment.base_position)
            context.token_ids += _slot_ids(segment)
            context.reused += segment.length
        else:
            context.pending += range(cache.length, cache.length + len(segment))
            context.token_ids += segment
            cache.reserve(len(segment))
    return context


def _length(segment: Segment) -> int:
    return segment.length if isinstance(segment, Packet) else len(segment)


def prefill(
    model: Engine,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    tail: Sequence[int],
    *,
    room: int,
    cache: ContextCache | None = None,
) -> tuple[Context, Tensor]:
    """Compute prefix, chunks and tail in one pass, as a system without packets does.

    Returns the context and the logits [1, vocabulary] of its last token.
    """
    ids = [*prefix, *(token for chunk in chunks for token in chunk), *tail]
    _check(model, len(ids) + room)
    cache = cache if cache is not None else model.allocate(len(ids) + room)
    logits = model.forward(cache, ids)
    return Context(cache, ids, reused=0, computed=len(ids)), logits


def ask(model: Engine, context: Context, tail: Sequence[int], *, bridge: Tensor | None = None) -> Tensor:
    """Run the question over a context, with the bridge before it.

    Text between packets that is not computed yet runs in the same pass. Returns the logits [1, vocabulary] of the last
    token of the question.
    """
    soft = 0 if bridge is None else len(bridge)
    ids = [SOFT_TOKEN] * soft + list(tail)
    if context.pending:
        slots = [*context.pending, *range(context.cache.length, context.cache.length + len(ids))]
        context.cache.reserve(len(ids))
        context.token_ids += ids
        run = torch.tensor([context.token_ids[slot] for slot in slots])
        logits = model.recompute(context.cache, torch.tensor(slots), run, soft=bridge, keep=1)
    else:
        logits = model.forward(context.cache, tail, bridge=bridge)
        context.token_ids += ids
    context.computed += len(context.pending) + len(ids)
    context.pending = []
    return logits


Method = Literal["packet", "full"]


def _check(model: Engine, total: int) -> None:
    if total > model.max_positions:
        raise BudgetError(
            f"The context needs {total} positions, but the model has {model.max_positions}. Use fewer or shorter chunks."
        )
