"""Tokens per second of building packets, compared with plain prefill of the same chunks in equally large batches."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Report, Table, Value
from kvpacket_rag.bench.speed.material import random_chunks
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved, ratio
from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.engine.transformers.packet_model import BATCH_TOKENS, PacketModel
from kvpacket_rag.engine.transformers.reference import Reference
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.number_formats import storage_named
from kvpacket_rag.store.blobs.folder import FolderBlobs
from kvpacket_rag.store.database.database import Database
from kvpacket_rag.store.database.sqlite import SQLite
from kvpacket_rag.store.packet_store import PacketStore

__all__ = ["measure_build"]

COLUMNS = (
    Column("tokens", "tokens of a chunk", "count"),
    Column("plain", "plain prefill, tokens/s", "count"),
    Column("bare", "packets without anchor", "count"),
    Column("packets", "packets", "count"),
    Column("stored", "packets, on disk", "count"),
    Column("bare_over_plain", "without anchor ÷ plain", "ratio"),
    Column("packets_over_plain", "packets ÷ plain", "ratio"),
    Column("stored_over_plain", "on disk ÷ plain", "ratio"),
)


def measure_build(
    model: PacketModel,
    lengths: Sequence[int],
    *,
    storage: str | None = None,
    repeats: int = 3,
    progress: Progress | None = None,
) -> Report:
    """Measure for chunks of several lengths. storage: the number format on disk."""
    if not lengths or min(lengths) < 1:
        raise InputError(f"Chunks must have at least one token; got {list(lengths)}.")
    spec = PacketSpec.of(model, Anchor.PASSAGES, storage_named(storage))
    rows: list[dict[str, Value]] = []
    for number, length in enumerate(sorted(set(lengths))):
        chunks = random_chunks(model, 2 * max(1, BATCH_TOKENS // length), length)
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            contextlib.closing(Database(SQLite(Path(folder) / "store.db"))) as database,
        ):
            ways = _ways(model, chunks, spec, PacketStore(database, FolderBlobs(Path(folder) / "packets")))
            seconds = interleaved(ways, repeats, synchronize=model.synchronize)
        total = sum(map(len, chunks))
        rates = {name: [total / value for value in values] for name, values in seconds.items()}
        ratios = {f"{name}_over_plain": ratio(rates, name, "plain") for name in ways if name != "plain"}
        rows.append({"tokens": length, **{name: Spread.of(values) for name, values in rates.items()}, **ratios})
        if progress is not None:
            progress(number + 1, len(set(lengths)))
    about = {"model": model.name, **machine(model), "storage": spec.storage.name, "rounds": repeats}
    about |= {"anchor_tokens": len(spec.anchor_ids), "batch_tokens": BATCH_TOKENS}
    notes = (
        "Plain prefill runs the chunks from position 0 in batches. Packets also attend to the anchor, whose KV cache is kept.",
    )
    return Report("Building", about, (Table("", COLUMNS, tuple(rows)),), notes)


def _ways(
    model: PacketModel, chunks: Sequence[tuple[int, ...]], spec: PacketSpec, store: PacketStore
) -> dict[str, Way]:
    reference, rows = Reference(model), max(1, BATCH_TOKENS // len(chunks[0]))

    def plain() -> object:
        return [reference.prefill(chunks[at : at + rows]) for at in range(0, len(chunks), rows)][-1]

    def encode(anchor: Sequence[int]) -> Callable[[], object]:
        return lambda: [packet.length for _, packet in model.encode_each(chunks, anchor=anchor)]

    def stored() -> object:
        made = model.encode_each(chunks, anchor=spec.anchor_ids)
        return [store.write_blob(packet, spec)[0].size for _, packet in made]

    return {
        "plain": Way(plain),
        "bare": Way(encode(())),
        "packets": Way(encode(spec.anchor_ids)),
        "stored": Way(stored),
    }
