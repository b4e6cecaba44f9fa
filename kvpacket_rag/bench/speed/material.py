"""The material for time measurements: packets of random text in their own store, and a question.

Speed does not depend on the content of texts, and random texts can have any length.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from kvpacket_rag.bench.speed.timing import Way
from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.engine.assembly import Context, ask, assemble
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.number_formats import storage_named
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.store.blobs.folder import FolderBlobs
from kvpacket_rag.store.database.database import Database
from kvpacket_rag.store.database.sqlite import SQLite
from kvpacket_rag.store.packet_store import PacketStore
from kvpacket_rag.training.samples.prompts import Question

__all__ = [
    "ANSWER_ROOM",
    "CHUNK_TOKENS",
    "QUESTION",
    "Material",
    "fitting",
    "left_out",
    "make_material",
    "random_chunks",
]

CHUNK_TOKENS = 256
ANSWER_ROOM = 64
QUESTION = "Which place is open on Sundays, and what do people bring?"
"""With the template around it, it is about as long as the median question of SQuAD and NQ: 31 tokens of SmolLM2."""


@dataclass(frozen=True, eq=False)
class Material:
    """Packets of random text in their own store, and a question."""

    model: PacketModel
    store: PacketStore
    spec: PacketSpec
    keys: tuple[str, ...]
    question: Question

    def at(self, count: int) -> Question:
        """Return the question over the first `count` chunks."""
        return Question(self.question.prefix, self.question.chunks[:count], self.question.tail)

    def packets(self, count: int) -> list[Packet]:
        """Return the first `count` packets, from memory if they are there."""
        wanted = [(key, self.spec.fingerprint) for key in self.keys[:count]]
        return [packet for packet in self.store.get_each(wanted) if isinstance(packet, Packet)]

    def assembled(self, count: int) -> Context:
        """Return a context of the first `count` packets, with room for the question and an answer."""
        room = len(self.question.tail) + ANSWER_ROOM
        return assemble(self.model, self.question.prefix, self.packets(count), room=room)

    def ways(self, count: int) -> dict[str, Way]:
        """Return the ways from the first `count` packets to a token: from memory, and from files in the page cache."""

        def answer() -> object:
            return int(ask(self.model, self.assembled(count), self.question.tail).argmax())

        return {
            "ram": Way(answer, before=lambda: self.packets(count)),
            "disk": Way(answer, before=self.store.forget),
        }

    def drop_pages(self) -> None:
        """Ask the system to drop the packets' files from its page cache, so that they are read from the disk."""
        for file in self.store.blobs.files():
            descriptor = os.open(Path(self.store.blobs.name) / file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def random_chunks(model: PacketModel, count: int, tokens: int = CHUNK_TOKENS) -> list[tuple[int, ...]]:
    """Return `count` chunks of `tokens` token ids without special tokens. A model gets the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, model.vocabulary_size, (count, 2 * tokens), generator=generator).tolist()
    special = set(model.text.special_ids)
    return [tuple([token for token in row if token not in special][:tokens]) for row in rows]


@contextlib.contextmanager
def make_material(model: PacketModel, count: int, storage: str | None = None) -> Iterator[Material]:
    """Build `count` packets in a temporary store, in the number format `storage`."""
    spec = PacketSpec.of(model, Anchor.PASSAGES, storage_named(storage))
    chunks = random_chunks(model, count)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.closing(Database(SQLite(Path(folder) / "store.db"))) as database,
    ):
        store = PacketStore(database, FolderBlobs(Path(folder) / "packets"), ram_bytes=1 << 50)  # all stay in memory
        blobs = {}
        for index, packet in model.encode_each(chunks, anchor=spec.anchor_ids):
            blobs[index] = store.write_blob(packet, spec)[0]
        with database.writing() as connection:
            store.insert(connection, blobs.values(), spec.anchor)
        prompt = model.text.prompt(QUESTION)
        keys = tuple(blobs[index].key for index in range(count))
        yield Material(model, store, spec, keys, Question(prompt.prefix, tuple(chunks), prompt.tail))


def fitting(model: PacketModel, lengths: list[int]) -> tuple[list[int], list[int]]:
    """Return the context lengths that fit the model, in ascending order, and those that do not.

    Raises `InputError` for lengths below one packet, or if none fits.
    """
    if not lengths or min(lengths) < CHUNK_TOKENS:
        raise InputError(f"Lengths must be at least one packet of {CHUNK_TOKENS} tokens; got {lengths}.")
    room = model.max_positions - CHUNK_TOKENS
    wanted = sorted({length for length in lengths if length <= room})
    if not wanted:
        raise InputError(f"{model.name} has {model.max_positions} positions; none of the lengths {lengths} fits.")
    return wanted, sorted(set(lengths) - set(wanted))


def left_out(lengths: list[int]) -> tuple[str, ...]:
    """Return the note on lengths that do not fit the model, if there are any."""
    names = ", ".join(f"{length:,}" for length in lengths)
    return (f"These lengths exceed the model's window and were left out: {names}.",) if lengths else ()
