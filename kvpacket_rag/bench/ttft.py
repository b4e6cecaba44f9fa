"""Time to first token, from the question's tokens to the choice of the answer's first token; search is left out.

Four ways to the same point, measured in turns: full prefill; packets from memory; packets from disk (read,
digest checked); and the limit, the question alone over a context that is already assembled.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kvpacket_rag.anchor import Anchor
from kvpacket_rag.assembly import Context, ask, assemble, prefill
from kvpacket_rag.bench.environment import machine, versions
from kvpacket_rag.database import Database
from kvpacket_rag.errors import InputError
from kvpacket_rag.model import PacketModel
from kvpacket_rag.precision import storage_named
from kvpacket_rag.recipe import PacketRecipe
from kvpacket_rag.store import PacketStore

__all__ = ["Spread", "TTFTReport", "TTFTRow", "measure", "write_report"]

CHUNK_TOKENS = 256
QUESTION = "Which of these places was described as open on Sundays, and what do visitors bring with them?"
ANSWER_ROOM = 64


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of several measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise measurements."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class TTFTRow:
    """Seconds to the first token at one context length, and ratios within each round."""

    context_tokens: int
    question_tokens: int
    packets: int
    full: Spread
    ram: Spread
    disk: Spread
    limit: Spread
    ram_over_limit: Spread
    disk_over_limit: Spread
    full_over_ram: Spread


@dataclass(frozen=True)
class TTFTReport:
    """Rows by context length, with what they were measured on."""

    model: str
    dtype: str
    device: str
    threads: int
    repeats: int
    chunk_tokens: int
    anchor_tokens: int
    versions: dict[str, str]
    rows: tuple[TTFTRow, ...]
    skipped: tuple[int, ...]
    """Lengths beyond the model's window."""


@dataclass(frozen=True, eq=False)
class _Bench:
    """Packets of random text in a store of their own, and a question."""

    model: PacketModel
    store: PacketStore
    recipe: PacketRecipe
    keys: list[str]
    chunks: list[tuple[int, ...]]
    prefix: tuple[int, ...]
    tail: tuple[int, ...]

    def ways(self, count: int) -> dict[str, Callable[[], object]]:
        """Make the four ways for a context of `count` packets; each leaves everything as it found it."""
        model, room = self.model, len(self.tail) + ANSWER_ROOM
        ready = self._assembled(count, room)
        filled = ready.cache.length

        def full() -> object:
            _, logits = prefill(model, self.prefix, self.chunks[:count], self.tail, room=ANSWER_ROOM)
            return logits.argmax()

        def ram() -> object:
            return ask(model, self._assembled(count, room), self.tail).argmax()

        def disk() -> object:
            self.store.forget()
            return ram()

        def limit() -> object:
            return model.forward(ready.cache.filled(filled), self.tail).argmax()

        return {"full": full, "ram": ram, "disk": disk, "limit": limit}

    def _assembled(self, count: int, room: int) -> Context:
        packets = [self.store.get(key, self.recipe.fingerprint) for key in self.keys[:count]]
        return assemble(self.model, self.prefix, [p for p in packets if p is not None], room=room)


def _prepare(model: PacketModel, count: int, database: Database) -> _Bench:
    recipe = PacketRecipe.of(model, Anchor.PASSAGES, storage_named(None, model.dtype))
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, model.vocabulary_size, (count, 2 * CHUNK_TOKENS), generator=generator).tolist()
    ordinary = [[token for token in row if token not in model.text.special_ids] for row in words]
    chunks = [tuple(row[:CHUNK_TOKENS]) for row in ordinary]
    store = PacketStore(database, database.path.parent / "packets")
    packets = model.encode(chunks, anchor=recipe.anchor_ids, storage=recipe.storage.dtype)
    blobs = [store.write_blob(packet, recipe)[0] for packet in packets]
    with database.writing() as connection:
        store.insert(connection, blobs, recipe.anchor)
    prompt = model.text.prompt(QUESTION)
    return _Bench(model, store, recipe, [blob.key for blob in blobs], chunks, prompt.prefix, prompt.tail)


def measure(
    model: PacketModel | str,
    lengths: Sequence[int],
    *,
    repeats: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> TTFTReport:
    """Measure at several context lengths (tokens, rounded to whole packets).

    progress: called with (measurements done, measurements in all). Raises `InputError` for lengths below one packet.
    """
    if not lengths or min(lengths) < CHUNK_TOKENS:
        raise InputError(f"Lengths must be at least one packet of {CHUNK_TOKENS} tokens; got {list(lengths)}.")
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}.")
    loaded = model if isinstance(model, PacketModel) else PacketModel.from_pretrained(model)
    room = loaded.max_positions - 256
    wanted = sorted({length for length in lengths if length <= room})
    if not wanted:
        raise InputError(
            f"{loaded.name} has {loaded.max_positions} positions; none of the lengths {list(lengths)} fits."
        )
    rows = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.closing(Database(Path(folder) / "store.db")) as database,
    ):
        bench = _prepare(loaded, max(wanted) // CHUNK_TOKENS, database)
        for number, length in enumerate(wanted):
            rows.append(_row(bench, length // CHUNK_TOKENS, repeats, number, len(wanted), progress))
    return TTFTReport(
        model=loaded.name,
        **machine(loaded),
        repeats=repeats,
        chunk_tokens=CHUNK_TOKENS,
        anchor_tokens=len(bench.recipe.anchor_ids),
        versions=versions(),
        rows=tuple(rows),
        skipped=tuple(sorted(set(lengths) - set(wanted))),
    )


def _row(
    bench: _Bench, count: int, repeats: int, number: int, of: int, progress: Callable[[int, int], None] | None
) -> TTFTRow:
    ways = bench.ways(count)
    for way in ways.values():  # warm up: memory, kernels, the kept prefix
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(repeats):
        for name in names[turn % 4 :] + names[: turn % 4]:  # no way always follows the same other
            bench.model.synchronize()
            start = time.perf_counter()
            ways[name]()
            bench.model.synchronize()
            seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress(number * repeats + turn + 1, of * repeats)

    def ratio(one: str, other: str) -> Spread:
        return Spread.of([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])

    return TTFTRow(
        context_tokens=count * CHUNK_TOKENS,
        question_tokens=len(bench.tail),
        packets=count,
        full=Spread.of(seconds["full"]),
        ram=Spread.of(seconds["ram"]),
        disk=Spread.of(seconds["disk"]),
        limit=Spread.of(seconds["limit"]),
        ram_over_limit=ratio("ram", "limit"),
        disk_over_limit=ratio("disk", "limit"),
        full_over_ram=ratio("full", "ram"),
    )


def markdown(report: TTFTReport) -> str:
    """Write the report as a Markdown table."""
    lines = [
        f"Time to first token, {report.model} in {report.dtype} on {report.device} with {report.threads} threads, "
        f"packets of {report.chunk_tokens} tokens, median of {report.repeats} rounds (smallest to largest); search left out.",
        "",
        "| context tokens | full prefill | packets, RAM | packets, disk | limit | RAM ÷ limit | disk ÷ limit | full ÷ RAM |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        times = (
            f"{1000 * s.median:.0f} ms ({1000 * s.low:.0f}–{1000 * s.high:.0f})"
            for s in (row.full, row.ram, row.disk, row.limit)
        )
        ratios = (f"{s.median:.2f} ({s.low:.2f}–{s.high:.2f})" for s in (row.ram_over_limit, row.disk_over_limit))
        speed = row.full_over_ram
        lines.append(
            f"| {row.context_tokens:,} | {' | '.join(times)} | {' | '.join(ratios)} | {speed.median:.1f} ({speed.low:.1f}–{speed.high:.1f}) |"
        )
    lines += ["", "The limit is the question alone, over a context that is already assembled."]
    if report.skipped:
        lines.append(f"Left out, beyond the model's window: {', '.join(map(str, report.skipped))}.")
    lines.append("Versions: " + ", ".join(f"{name} {version}" for name, version in report.versions.items()) + ".")
    return "\n".join(lines)


def write_report(report: TTFTReport, folder: Path) -> str:
    """Write report.json and report.md into a folder, and give the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(report)
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")
    return text
