"""Seconds per generated token, compared with `generate` of transformers with its own cache over the same context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from kvpacket_rag.answering.generation import GenerationConfig, TextStream, choose
from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Picture, Report, Table, Value
from kvpacket_rag.bench.speed.material import CHUNK_TOKENS, fitting, left_out, random_chunks
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved, ratio
from kvpacket_rag.engine.transformers.cache import SlotCache
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.engine.transformers.reference import Reference
from kvpacket_rag.errors import check_count

__all__ = ["measure_decode"]

COLUMNS = (
    Column("context", "context tokens", "count"),
    Column("ours", "kvpacket, per token", "fine ms"),
    Column("generate", "transformers generate, per token", "fine ms"),
    Column("ratio", "kvpacket ÷ generate", "ratio"),
)


def measure_decode(
    model: PacketModel, lengths: Sequence[int], *, tokens: int = 32, repeats: int = 5, progress: Progress | None = None
) -> Report:
    """Measure greedy decoding of `tokens` tokens at several context lengths."""
    check_count(tokens, "tokens")
    wanted, skipped = fitting(model, list(lengths))
    rows: list[dict[str, Value]] = []
    for number, length in enumerate(wanted):
        ids = list(chain.from_iterable(random_chunks(model, -(-length // CHUNK_TOKENS))))[:length]
        seconds = interleaved(_ways(model, ids, tokens), repeats, synchronize=model.synchronize)
        each = {name: [value / tokens for value in values] for name, values in seconds.items()}
        spreads = {name: Spread.of(values) for name, values in each.items()}
        rows.append({"context": length, **spreads, "ratio": ratio(each, "ours", "generate")})
        if progress is not None:
            progress(number + 1, len(wanted))
    about = {"model": model.name, **machine(model), "tokens": tokens, "rounds": repeats}
    notes = ("generate uses its default cache and attention. Its cache already holds the context.", *left_out(skipped))
    picture = Picture("context", ("ours", "generate"), "context, tokens", "seconds per token")
    return Report("Decoding", about, (Table("", COLUMNS, tuple(rows)),), notes, picture)


def _ways(model: PacketModel, ids: Sequence[int], tokens: int) -> dict[str, Way]:
    cache = model.allocate(len(ids) + tokens + 1)
    model.forward(cache, ids)
    reference = Reference(model)
    filled = reference.prefill([ids])
    fresh = [filled]

    def renew() -> None:
        fresh[0] = reference.copy(filled)

    return {
        "ours": Way(_decoding(model, cache.filled(len(ids)), tokens)),
        "generate": Way(lambda: reference.generate([*ids, 0], fresh[0], tokens), before=renew),
    }


def _decoding(model: PacketModel, cache: SlotCache, tokens: int) -> Callable[[], object]:
    """Return a function that decodes each token as `generate` of this package does, but never stops early."""
    length = cache.length

    def decode() -> str:
        config, stream, token, text = GenerationConfig(), TextStream(model), 0, ""
        again = cache.filled(length)
        for _ in range(tokens):
            token = choose(model.forward(again, [token])[0], config)
            text += stream.push(token)
        return text

    return decode
