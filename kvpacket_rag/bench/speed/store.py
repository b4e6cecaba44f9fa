"""Size and speed of a store: bytes and loading speed by number format, search among many vectors, and opening."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Report, Table, Value
from kvpacket_rag.bench.speed.material import QUESTION, make_material
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets import codec
from kvpacket_rag.retrieval.embedder import Embedder, Vectors, embed_question, unit_vectors
from kvpacket_rag.retrieval.search import Search
from kvpacket_rag.retrieval.vector_index import VectorIndex
from kvpacket_rag.store.chunk_rows import StoredChunks
from kvpacket_rag.store.database.database import Database, write_fact
from kvpacket_rag.store.database.schema import chunks, documents
from kvpacket_rag.store.database.sqlite import SQLite

__all__ = ["measure_store", "searcher"]

DIMENSION = 384
"""Number of dimensions of the default embedder's vectors."""
PACKETS = 8
SEARCHES = 20
BATCH = 10_000

FORMATS = (
    Column("storage", "packets at rest", "text"),
    Column("bytes_per_token", "bytes per token", "count"),
    Column("share", "÷ 16 bit", "ratio"),
    Column("read", "read and check, per packet", "fine ms"),
    Column("decode", "decode, per packet (quantised numbers are converted when placed)", "fine ms"),
    Column("write", "encode and write, per packet", "fine ms"),
    Column("bandwidth", "read and checked, MB/s", "count"),
)
SEARCH = (
    Column("vectors", "vectors", "count"),
    Column("memory", "vectors in memory (computed)", "MB"),
    Column("search", "index, k = 4", "fine ms"),
    Column("embed", "embed the question", "fine ms"),
    Column("open", "open and first search", "ms"),
)


def measure_store(
    model: PacketModel,
    sizes: Sequence[int],
    *,
    embedder: Embedder | None = None,
    storages: Sequence[str] = ("bfloat16", "int8", "int4"),
    repeats: int = 5,
    progress: Progress | None = None,
) -> Report:
    """Measure packets in several number formats, and search among several numbers of vectors.

    sizes: the numbers of vectors. embedder: if given, the time to embed a question is measured too.
    """
    total = len(storages) + len(sizes)
    formats: list[dict[str, Value]] = []
    for storage in storages:
        formats.append(_format(model, storage, repeats))
        formats[-1]["share"] = _number(formats[-1]["bytes_per_token"]) / _number(formats[0]["bytes_per_token"])
        if progress is not None:
            progress(len(formats), total)
    searches: list[dict[str, Value]] = []
    for size in sorted(sizes):
        searches.append(_search(size, embedder))
        if progress is not None:
            progress(len(formats) + len(searches), total)
    about = {"model": model.name, **machine(model), "packets": PACKETS, "rounds": repeats}
    notes = ("Files are in the system's page cache. The search compares every vector.",)
    tables = Table("Packets", FORMATS, tuple(formats)), Table("Search", SEARCH, tuple(searches))
    return Report("Store", about, tables, notes)


def _number(value: Value) -> float:
    return value if isinstance(value, int | float) else 1.0


def _format(model: PacketModel, storage: str, repeats: int) -> dict[str, Value]:
    with make_material(model, PACKETS, storage) as material:
        fingerprint = material.spec.fingerprint
        blobs = [data for key in material.keys if (data := material.store.fetch(key)) is not None]
        packets = model.encode(material.question.chunks, anchor=material.spec.anchor_ids)
        seconds = interleaved(
            {
                "read": Way(lambda: [material.store.fetch(key) for key in material.keys]),
                "decode": Way(lambda: [codec.decode(data, fingerprint, "") for data in blobs]),
                "write": Way(lambda: [material.store.write_blob(packet, material.spec)[1] for packet in packets]),
            },
            repeats,
        )
        size = sum(map(len, blobs))
        tokens = sum(packet.length for packet in packets)
        each = {name: Spread.of([value / PACKETS for value in values]) for name, values in seconds.items()}
        bandwidth = Spread.of([size / value / 1e6 for value in seconds["read"]])
    return {"storage": storage, "bytes_per_token": size / tokens, **each, "bandwidth": bandwidth}


def _vectors(count: int) -> Iterator[Vectors]:
    """Yield unit vectors in batches, clustered around centres like those of texts. They are the same each time."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((2000, DIMENSION), dtype=np.float32)
    for start in range(0, count, BATCH):
        rows = min(BATCH, count - start)
        noise = generator.standard_normal((rows, DIMENSION), dtype=np.float32)
        yield unit_vectors(centres[generator.integers(0, len(centres), rows)] + noise)


def _search(size: int, embedder: Embedder | None) -> dict[str, Value]:
    index = VectorIndex(DIMENSION)
    start = 0
    for rows in _vectors(size):
        index.add(list(range(start, start + len(rows))), rows)
        start += len(rows)
    questions = next(_vectors(SEARCHES))
    found = [_seconds(lambda v=vector: index.search(v, 4)) for vector in questions]  # type: ignore[misc]
    row: dict[str, Value] = {"vectors": size, "memory": size * (DIMENSION * 2 + 8), "search": Spread.of(found[1:])}
    if embedder is not None:
        embed_question(embedder, QUESTION)
        row["embed"] = Spread.of([_seconds(lambda: embed_question(embedder, QUESTION)) for _ in range(SEARCHES)])
    row["open"] = _opening(size)
    return row


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _opening(size: int) -> float:
    """Return the seconds until a database of `size` chunks is open and has answered its first search."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with (
            contextlib.closing(Database(SQLite(Path(folder) / "store.db"))) as database,
            database.writing() as connection,
        ):
            document = {
                "name": "d",
                "title": "",
                "source": "",
                "content": "",
                "metadata": {},
                "characters": 0,
                "added": 0.0,
            }
            connection.execute(sa.insert(documents).values(id=1, **document))
            number = 0
            for rows in _vectors(size):
                connection.execute(sa.insert(chunks), [_chunk_row(number + at, row) for at, row in enumerate(rows)])
                number += len(rows)
            write_fact(connection, "generation", 1)
        vector = next(_vectors(1))[0]

        def first() -> None:
            with contextlib.closing(Database(SQLite(Path(folder) / "store.db"))) as database:
                Search(StoredChunks(database)).nearest(vector, 4, None)

        return _seconds(first)


def _chunk_row(number: int, vector: Vectors) -> dict[str, object]:
    return {
        "name": f"d#{number}", "document_id": 1, "ordinal": number, "start": 0, "stop": 0, "text": "", "token_ids": b"",
        "content": str(number), "vector": vector.tobytes(),
    }  # fmt: skip


def searcher(embedder: Embedder, size: int = BATCH) -> Callable[[], tuple[float, float]]:
    """Return a function that embeds a question, searches `size` chunks with it and returns the seconds of both."""
    vectors = next(_vectors(size))
    index = VectorIndex(DIMENSION)
    index.add(list(range(size)), vectors[:size])

    def search() -> tuple[float, float]:
        start = time.perf_counter()
        vector = unit_vectors(embed_question(embedder, QUESTION))
        middle = time.perf_counter()
        index.search(vector if len(vector) == DIMENSION else vectors[0], 4)
        return middle - start, time.perf_counter() - middle

    return search
