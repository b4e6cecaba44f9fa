"""Maintenance of a store with many chunks: the time to open, count, add one document and verify."""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Report, Table, Value
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved, ratio
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.retrieval.embedder import Vectors, unit_vectors
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["measure_care"]

DIMENSION = 384
PER_DOCUMENT = 12
"""Approximate number of chunks of 48 tokens in a document."""
WORDS = ["lamp", "battery", "cable", "shade", "green", "ochre", "glass", "price", "crown", "month", "cloth", "soap", "charge", "spare", "pair", "handle", "door", "river", "winter", "engine", "paper", "garden", "letter", "window", "bridge", "metal", "station", "harbour", "copper"]  # fmt: skip

COLUMNS = (
    Column("chunks", "chunks", "count"),
    Column("bytes", "packet files", "MB"),
    Column("open", "open and count", "ms"),
    Column("info", "info", "ms"),
    Column("add", "add a document", "ms"),
    Column("verify", "verify", "ms"),
    Column("read", "read the same files", "ms"),
    Column("ratio", "reading ÷ verifying", "ratio"),
)


class _Embedder:
    """Draws vectors from a hash of the text. Their meaning does not matter here."""

    name = "random-384"
    dimension = DIMENSION

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMENSION) for text in texts]
        return unit_vectors(np.asarray(rows, dtype=np.float32))


def measure_care(
    model: PacketModel, count: int, *, chunk_tokens: int = 48, repeats: int = 3, progress: Progress | None = None
) -> Report:
    """Build a store in a temporary folder, and measure it.

    It has about `count` chunks of 48 tokens, or fewer chunks if they are longer.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _open(folder, model, chunk_tokens) as store:
        store.add(_documents(count), progress=None if progress is None else lambda state: progress(state.chunks, count))
        numbers = iter(range(repeats + 1))
        files = sorted((Path(folder) / "packets").rglob("*.safetensors"))
        seconds = interleaved(
            {
                "open": Way(lambda: _count(folder, model, chunk_tokens)),
                "info": Way(store.info),
                "verify": Way(store.verify),
                "read": Way(lambda: [file.read_bytes() for file in files]),
                "add": Way(lambda: store.add([_document(f"new-{next(numbers)}", count)])),
            },
            repeats,
        )
        info = store.info()
    row: dict[str, Value] = {
        "chunks": info.chunks, "bytes": info.packet_bytes, **{key: Spread.of(values) for key, values in seconds.items()},
        "ratio": ratio(seconds, "read", "verify"),
    }  # fmt: skip
    about = {"model": model.name, **machine(model), "chunk tokens": chunk_tokens, "rounds": repeats}
    notes = ("Files are in the system's page cache, which is faster than any disk.",)
    return Report("Store with many chunks", about, (Table("Maintenance", COLUMNS, (row,)),), notes)


def _open(folder: str, model: PacketModel, chunk_tokens: int) -> DocumentStore:
    return DocumentStore.open(folder, model=model, embedder=_Embedder(), chunk_tokens=chunk_tokens, anchor="none")


def _count(folder: str, model: PacketModel, chunk_tokens: int) -> None:
    with _open(folder, model, chunk_tokens) as store:
        store.info()


def _documents(count: int) -> Iterator[Document]:
    for number in range(count // PER_DOCUMENT):
        yield _document(str(number), number)


def _document(name: str, seed: int) -> Document:
    dice = random.Random(f"{name} {seed}")  # noqa: S311 - texts that can be made again
    sentences = (" ".join(dice.choices(WORDS, k=14)).capitalize() + f" {dice.randrange(10**6)}." for _ in range(20))
    return Document("\n\n".join(sentences), id=name)
