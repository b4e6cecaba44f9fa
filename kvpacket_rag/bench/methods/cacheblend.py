"""CacheBlend (arXiv 2405.16444) recomputes the tokens whose keys and values deviate most at an early layer."""

from __future__ import annotations

import torch

from kvpacket_rag.bench.methods.base import Pass
from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of
from kvpacket_rag.engine.assembly import Context
from kvpacket_rag.engine.transformers.cache import slot_cache
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["CacheBlend"]

CHECKED_LAYERS = 2
"""Number of layers that are run on all chunk tokens. The deviation is measured at the last of them, which is the first
layer whose keys and values depend on the context."""


class CacheBlend(AbstractRepair):
    """Recomputes the tokens that differ most from a full prefill at the second layer."""

    kind = "cacheblend"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Compute the early layers of all chunk tokens in the context, and compare them with the packets.

        The new keys and values of these layers stay in the context.
        """
        start, stop = len(question.prefix), context.cache.length
        slots = torch.arange(start, stop)
        keys, values = slot_cache(context.cache).layer_states(CHECKED_LAYERS - 1)
        before = [part[0, :, start:stop].float().clone() for part in (keys, values)]
        model.recompute(context.cache, slots, torch.tensor(context.token_ids)[slots], layers=CHECKED_LAYERS)
        after = [part[0, :, start:stop].float() for part in (keys, values)]
        deviation = sum((new - old).square().sum(dim=(0, 2)) for new, old in zip(after, before, strict=True))
        chosen = torch.as_tensor(deviation).topk(count_of(self.share, stop - start)).indices.cpu()
        return Choice(slots[chosen], (Pass(len(slots), int((slots + 1).sum()), layers=CHECKED_LAYERS),))
