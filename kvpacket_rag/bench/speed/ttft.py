"""Time to first token, from the question's tokens to the choice of the answer's first token.

Several ways to the first token take turns: full prefill; packets from memory, from files in the system's page cache,
and from the disk; methods that recompute some tokens; and the limit, which is the question alone over a context that is
already assembled. For packets in files, a second table shows the time of each step, including the search.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence

from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.methods.base import AbstractMethod
from kvpacket_rag.bench.report import Column, Picture, Report, Table, Value
from kvpacket_rag.bench.speed.material import ANSWER_ROOM, CHUNK_TOKENS, Material, fitting, left_out, make_material
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved, ratio
from kvpacket_rag.engine.assembly import ask, assemble, prefill
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets import codec
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["measure_ttft"]

STEPS = ("embed", "search", "load", "decode", "assemble", "question", "choose")

Search = Callable[[], tuple[float, float]]
"""Embeds a question and searches with it. Returns the seconds of both steps."""


def measure_ttft(
    model: PacketModel,
    lengths: Sequence[int],
    *,
    repeats: int = 5,
    storage: str | None = None,
    others: Sequence[AbstractMethod] = (),
    search: Search | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure at several context lengths (in tokens, rounded down to whole packets).

    storage: the number format of stored packets. others: recomputing methods to compare with. search: the search whose
    steps are measured too.
    Raises `InputError` for lengths below one packet or repeats below 1.
    """
    wanted, skipped = fitting(model, list(lengths))
    rows: list[dict[str, Value]] = []
    steps: list[dict[str, Value]] = []
    with make_material(model, max(wanted) // CHUNK_TOKENS, storage) as material:
        for number, length in enumerate(wanted):
            count = length // CHUNK_TOKENS
            told = _part(progress, number, len(wanted), repeats)
            seconds = interleaved(_ways(material, count, others), repeats, synchronize=model.synchronize, progress=told)
            rows.append(_row(count * CHUNK_TOKENS, seconds))
            steps.append({"context": count * CHUNK_TOKENS, **_steps(material, count, repeats, search)})
        about = {
            "model": model.name,
            **machine(model),
            "chunk_tokens": CHUNK_TOKENS,
            "question_tokens": len(material.question.tail),
            "storage": material.spec.storage.name,
            "rounds": repeats,
        }
    return Report(
        "Time to first token",
        about,
        _tables(rows, steps, [method.name for method in others]),
        (
            "The limit is the question alone, over a context that is already assembled. Search is left out of the first table.",
            *left_out(skipped),
        ),
        PICTURE,
    )


PICTURE = Picture("context", ("full", "disk", "ram", "limit"), "context, tokens", "seconds to first token")


def _ways(material: Material, count: int, others: Sequence[AbstractMethod]) -> dict[str, Way]:
    """Return the ways for a context of `count` packets. No way affects the ways that run after it."""
    model, store, question = material.model, material.store, material.at(count)
    ready = material.assembled(count)
    filled = ready.cache.length

    def full() -> object:
        _, logits = prefill(model, question.prefix, question.chunks, question.tail, room=ANSWER_ROOM)
        return int(logits.argmax())

    def limit() -> object:
        return int(model.forward(ready.cache.filled(filled), question.tail).argmax())

    def cold() -> None:
        store.forget()
        material.drop_pages()

    ways = {"full": Way(full), **material.ways(count), "limit": Way(limit)}
    if hasattr(os, "posix_fadvise"):
        ways["cold"] = Way(ways["disk"].run, before=cold)
    for method in others:
        ways[method.name] = Way(_begin(method, model, question))
    return ways


def _begin(method: AbstractMethod, model: PacketModel, question: Question) -> Callable[[], object]:
    stored = method.packets(model, question.chunks)
    return lambda: int(method.begin(model, question, stored, ANSWER_ROOM).logits.argmax())


def _row(context: int, seconds: dict[str, list[float]]) -> dict[str, Value]:
    row: dict[str, Value] = {"context": context, **{name: Spread.of(values) for name, values in seconds.items()}}
    row["ram_over_limit"], row["disk_over_limit"] = ratio(seconds, "ram", "limit"), ratio(seconds, "disk", "limit")
    row["full_over_ram"] = ratio(seconds, "full", "ram")
    return row


def _steps(material: Material, count: int, repeats: int, search: Search | None) -> dict[str, Value]:
    """Return the seconds of each step when packets come from files in the page cache.

    The steps run one after another and do not use the store's memory cache.
    """
    model, question = material.model, material.at(count)
    keys, fingerprint = material.keys[:count], material.spec.fingerprint
    room = len(question.tail) + ANSWER_ROOM
    taken: dict[str, list[float]] = {name: [] for name in STEPS}
    for turn in range(-1, repeats):
        embed, found = search() if search else (0.0, 0.0)
        marks = [time.perf_counter()]

        def mark(marks: list[float] = marks) -> None:
            model.synchronize()
            marks.append(time.perf_counter())

        data = list(material.store.fetch_each(keys))
        mark()
        packets = [codec.decode(blob, fingerprint, "") for blob in data if blob is not None]
        mark()
        context = assemble(model, question.prefix, packets, room=room)
        mark()
        logits = ask(model, context, question.tail)
        mark()
        int(logits.argmax())
        mark()
        spent = [b - a for a, b in itertools.pairwise(marks)]
        if turn >= 0:
            for name, value in zip(STEPS, (embed, found, *spent), strict=True):
                taken[name].append(value)
    left_out = () if search else ("embed", "search")
    return {name: Spread.of(values) for name, values in taken.items() if name not in left_out}


def _tables(rows: list[dict[str, Value]], steps: list[dict[str, Value]], others: Sequence[str]) -> tuple[Table, ...]:
    context = Column("context", "context tokens", "count")
    ways = (
        context,
        Column("full", "full prefill", "ms"),
        Column("ram", "packets, memory", "ms"),
        Column("disk", "packets, page cache", "ms"),
        Column("cold", "packets, cold disk", "ms"),
        *(Column(name, name, "ms") for name in others),
        Column("limit", "limit", "ms"),
        Column("ram_over_limit", "memory ÷ limit", "ratio"),
        Column("disk_over_limit", "page cache ÷ limit", "ratio"),
        Column("full_over_ram", "full ÷ memory", "times"),
    )
    split = (
        context,
        Column("embed", "embed the question", "fine ms"),
        Column("search", "search", "fine ms"),
        Column("load", "read and check", "fine ms"),
        Column("decode", "decode", "fine ms"),
        Column("assemble", "assemble", "fine ms"),
        Column("question", "question", "fine ms"),
        Column("choose", "choose a token", "fine ms"),
    )
    return Table("", ways, tuple(rows)), Table("Steps, packets in page cache", split, tuple(steps))


def _part(progress: Progress | None, number: int, of: int, repeats: int) -> Progress | None:
    """Return the progress callback for one of several lengths."""
    if progress is None:
        return None
    return lambda done, _: progress(number * repeats + done, of * repeats)
