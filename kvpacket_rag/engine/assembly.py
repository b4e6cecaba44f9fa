"""Packets to context: one allocation, every state read once and written once.

`assemble` places packets, and leaves room for text that stands between them, which `ask` reads in one pass with the
question; `prefill` computes the same tokens from scratch. Both give a `Context`, and whatever
reads a context cannot tell which one made it.
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
"""Stands for a header, trailer or bridge slot in lists of token ids."""


@dataclass(eq=False)
class Context:
    """A cache ready for the question, with the ids of the tokens in it."""

    cache: ContextCache
    token_ids: list[int]
    """Real token ids of every filled slot; `SOFT_TOKEN` where an embedding has none."""
    reused: int
    """Slots filled from packets or from a kept prefix."""
    computed: int
    """Slots filled by running the model for this context."""
    pending: list[int] = field(default_factory=list)
    """Slots of text between packets, whose states `ask` computes together with the question's."""


Segment = Packet | tuple[int, ...]
"""A piece of a context: a packet, or token ids of text that has none."""


@dataclass(frozen=True)
class Need:
    """Slots a question takes besides its packets."""

    prefix: int
    tail: int
    answer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.prefix + self.tail + self.answer


def fit(lengths: Sequence[int], need: Need, limit: int) -> int:
    """Say how many packets, given by length in order of rank, fit into `limit` positions; the lowest ranked are left out.

    Raises `BudgetError` with the numbers when not even the question fits.
    """
    room = limit - need.total
    if room < 0:
        raise BudgetError(
            f"The question does not fit: prefix {need.prefix} + question {need.tail} + answer {need.answer} = {need.total} tokens, "
            f"the model has {limit} positions. Shorten the question or lower max_new_tokens."
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
    """Place the prefix and packets one after another, keys turned to their new positions.

    prefix: opens many contexts; its states are kept for the next. segments: packets, and text between them, which
    is computed by `ask`. room: slots to leave for question and answer. cache: an empty cache of one row to fill,
    default a new one. The packets are only read.
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
    """Run the question over a context, with the bridge before it; returns the logits [1, vocabulary] of its last token.

    What stands between packets and was not computed yet is run in the same pass.
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
            f"The context needs {total} positions, the model has {model.max_positions}. Use fewer or shorter chunks."
        )
