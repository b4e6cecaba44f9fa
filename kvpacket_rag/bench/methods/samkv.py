"""SAM-KV (arXiv 2508.11661) drops tokens of each chunk, chosen across all chunks, and recomputes the kept ones.

This implementation follows the abstract only. It assumes the following. Blocks have 16 tokens. The score of a block is
the attention that the question pays to it in a softmax over all chunks together. The first and the last block of each
chunk are always kept. One pass recomputes all kept tokens at their original positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvpacket_rag.bench.methods.base import Begun, Pass
from kvpacket_rag.bench.methods.repair import AbstractRepair, Choice, count_of, spans
from kvpacket_rag.engine.assembly import Context, assemble
from kvpacket_rag.engine.transformers.cache import slot_cache
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["SamKV"]

BLOCK = 16


class SamKV(AbstractRepair):
    """Keeps and recomputes a share of the chunk tokens. The other tokens are not in the context."""

    kind = "samkv"

    def choose(self, model: PacketModel, context: Context, question: Question) -> Choice:
        """Rank blocks by the question's attention. Keep the best, and the first and last block of each chunk."""
        weights = model.attention(context.cache, torch.tensor(question.tail)).mean(0)
        blocks, worth = [], []
        for span in spans(question):
            inside = [span[at : at + BLOCK] for at in range(0, len(span), BLOCK)]
            blocks += inside
            worth += [
                torch.inf if number in (0, len(inside) - 1) else float(weights[block.start : block.stop].mean())
                for number, block in enumerate(inside)
            ]
        wanted = count_of(self.share, sum(map(len, blocks)))
        kept: list[int] = []
        for number in sorted(range(len(blocks)), key=lambda n: worth[n], reverse=True):
            if len(kept) < wanted or worth[number] == torch.inf:
                kept += blocks[number]
        return Choice(torch.tensor(sorted(kept)), (Pass.behind(context.cache.length, len(question.tail)),))

    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Place the packets, drop unchosen tokens, recompute the chosen ones in one pass, and run the question."""
        model = model.with_adapter(None)
        tail = torch.tensor(question.tail)
        context = assemble(model, question.prefix, packets, room=len(tail) + room)
        ids, whole = torch.tensor(context.token_ids), context.cache.length
        choice = self.choose(model, context, question)
        positions = torch.cat((torch.arange(len(question.prefix)), choice.slots))
        cache = slot_cache(context.cache).compact(positions)
        slots = torch.arange(len(question.prefix), len(positions))
        model.recompute(cache, slots, ids[choice.slots], positions=positions)
        logits = model.forward(cache, tail, positions=torch.arange(whole, whole + len(tail))[None])
        token_ids = [*ids[positions].tolist(), *question.tail]
        context = Context(cache, token_ids, reused=len(question.prefix), computed=len(slots) + len(tail))
        repaired = Pass(len(slots), int((slots + 1).sum()))
        passes = (*choice.passes, repaired, Pass.behind(len(positions), len(tail), logits=1))
        return Begun(context, logits, passes, skipped=whole - len(positions))
