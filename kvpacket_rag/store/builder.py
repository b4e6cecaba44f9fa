"""The builder splits and embeds documents, encodes many chunks at a time, and commits document by document.

A document, its chunks, vectors and packets become visible in one transaction. Until then, the store serves the old
version. An interruption keeps what was committed and leaves nothing else behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.corpus.document import Chunk, Document, check_document
from kvpacket_rag.corpus.splitter import chunk_tokens
from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.errors import DamagedError, InputError, KVPacketError, check_kind
from kvpacket_rag.events import AddReport, BuildListener, BuildProgress, DocumentStored, PacketsBuilt
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.fingerprint import content_hash
from kvpacket_rag.packets.number_formats import Storage, dense
from kvpacket_rag.packets.packet import LoadedPackets, Packet
from kvpacket_rag.retrieval.embedder import Vectors, unit_vectors
from kvpacket_rag.store.configuration import Configuration
from kvpacket_rag.store.database.database import Database, parts
from kvpacket_rag.store.database.schema import chunks as chunk_table
from kvpacket_rag.store.database.schema import documents as document_table
from kvpacket_rag.store.database.schema import packets as packet_table
from kvpacket_rag.store.packet_store import BlobsLostError, PacketStore, WrittenBlob
from kvpacket_rag.store.removal import delete_document, drop_damaged, raise_generation

__all__ = ["BuildCounter", "Builder", "load_packets"]

WINDOW_CHUNKS = 32
"""Chunks gathered before they are encoded, so that forward passes are full. Packets wait on disk for the commit."""


@dataclass(eq=False)
class BuildCounter:
    """Counts the work of a running build."""

    total: int | None
    started: float = field(default_factory=time.monotonic)
    report: AddReport = field(default_factory=AddReport)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        self.report = replace(self.report, **{name: getattr(self.report, name) + n for name, n in more.items()})

    def progress(self) -> BuildProgress:
        """Return the current progress."""
        done = self.report.added + self.report.updated + self.report.unchanged
        return BuildProgress(
            done, self.total, self.report.packets_built, self.report.tokens_built, time.monotonic() - self.started
        )


@dataclass(frozen=True)
class _Planned:
    """A new or changed document and its chunks."""

    document: Document
    chunks: list[Chunk]


@dataclass(frozen=True, eq=False)
class _Window:
    """The vectors and packets made for the chunks of several documents, by content hash."""

    vectors: dict[str, Vectors]
    """Vectors of the chunks whose document has no vector of its own."""
    blobs: dict[str, WrittenBlob]
    needed: frozenset[str]
    """Content hashes of all chunks of the window."""


class Builder:
    """Adds documents to a store, with the model, splitter and embedder of its configuration."""

    def __init__(self, database: Database, store: PacketStore, configuration: Configuration) -> None:
        self._database, self._store, self._configuration = database, store, configuration
        self._spec = configuration.packet_spec(1)

    def build(self, documents: Iterable[Document], progress: BuildListener | None = None) -> AddReport:
        """Add documents, each in a transaction of its own. See `DocumentStore.add`."""
        check_kind(documents, Iterable, "Documents", "Give a list, even for one document.")
        counter = BuildCounter(len(documents) if isinstance(documents, Sequence) else None)
        report = progress or (lambda _: None)
        for window in self._windows(documents, counter):
            self._build_window(window, counter, report)
            report(counter.progress())
        return replace(counter.report, seconds=time.monotonic() - counter.started)

    def _windows(self, documents: Iterable[Document], counter: BuildCounter) -> Iterator[list[_Planned]]:
        """Yield new and changed documents with their chunks, in windows large enough for full forward passes."""
        window: list[_Planned] = []
        seen: set[str] = set()
        for document in documents:
            check_document(document)
            if document.id in seen:
                raise InputError(f"Two documents have the id {document.id!r}; give each its own.")
            seen.add(document.id)
            if self._stored_content(document.id) == document.content:
                counter.count(unchanged=1)
                continue
            window.append(_Planned(document, self._configuration.splitter.split(document)))
            if sum(len(plan.chunks) for plan in window) >= WINDOW_CHUNKS:
                yield window
                window = []
        yield window

    def _stored_content(self, name: str) -> str | None:
        with self._database.reading() as connection:
            return connection.execute(sa.select(document_table.c.content).where(document_table.c.name == name)).scalar()

    def _build_window(self, planned: list[_Planned], counter: BuildCounter, report: BuildListener) -> None:
        chunks = list({chunk.content: chunk for plan in planned for chunk in plan.chunks}.values())
        missing = self._missing(chunks)
        own = [plan.chunks for plan in planned if plan.document.vector is None]
        vectors = self._embed(list({c.content: c for some in own for c in some}.values()))
        window = _Window(vectors, {}, frozenset(chunk.content for chunk in chunks))
        try:
            for blob, _ in self._write_packets([chunk for chunk in chunks if chunk.content in missing], self._spec):
                if not blob.file:
                    continue  # the store's limit left no room; the packet is built when a question needs it
                window.blobs[blob.content] = blob
                counter.count(packets_built=1, tokens_built=blob.tokens)
                report(counter.progress())
            for plan in planned:
                updated = self._commit(plan, window)
                counter.count(updated=int(updated), added=int(not updated), chunks=len(plan.chunks))
                report(counter.progress())
        finally:
            self._store.discard([blob.file for blob in window.blobs.values()])

    def _embed(self, chunks: Sequence[Chunk]) -> dict[str, Vectors]:
        """Return unit vectors by content hash. Raises `MismatchError` if their length differs from stored vectors."""
        if not chunks:
            return {}
        rows = unit_vectors(self._configuration.embedder.embed([chunk.text for chunk in chunks]))
        self._configuration.check_vector(rows[0])
        return dict(zip([chunk.content for chunk in chunks], rows, strict=True))

    def _given_vector(self, document: Document) -> Vectors | None:
        """Return the document's own vector, an empty one if searches must not find it, or None if it has none.

        Raises `MismatchError` if its length differs from stored vectors.
        """
        if not document.vector:
            return None if document.vector is None else np.empty(0, np.float32)
        return self._configuration.check_vector(unit_vectors(document.vector))

    def _missing(self, chunks: Sequence[Chunk]) -> set[str]:
        """Return the content hashes of the chunks that have no packet of the builder's spec yet."""
        contents = [chunk.content for chunk in chunks]
        table = packet_table.c
        present: set[str] = set()
        with self._database.reading() as connection:
            for part in parts(contents):
                rows = sa.select(table.content).where(
                    table.fingerprint == self._spec.fingerprint.digest, table.content.in_(part)
                )
                present.update(connection.execute(rows).scalars())
        return set(contents) - present

    def _write_packets(
        self, chunks: Sequence[Chunk], spec: PacketSpec, *, evict: bool = True
    ) -> Iterator[tuple[WrittenBlob, bytes]]:
        """Encode chunks and write each packet to a file as soon as it is ready. No row names the files yet.

        Yields a description of each file and its bytes.
        """
        ids = [chunk.token_ids for chunk in chunks]
        # Quantise from the numbers that the model computed, not from rounded ones.
        kept = None if spec.storage.bits else spec.storage.dtype
        began, tokens = time.perf_counter(), 0
        for _, packet in self._configuration.model.encode_each(ids, anchor=spec.anchor_ids, storage=kept):
            _check_finite(packet, spec.storage)
            tokens += len(packet.token_ids)
            yield self._store.write_blob(packet, spec, evict=evict)
        if ids:
            self._store.events.emit(PacketsBuilt(len(ids), tokens, time.perf_counter() - began))

    def build_on_demand(self, chunks: Sequence[Chunk], spec: PacketSpec, *, evict: bool = True) -> dict[str, Packet]:
        """Build and store packets that a question needs and the store lacks. Return them by content hash.

        evict: whether other packets may be evicted if the store has a limit. If not, packets without room are left out.
        """
        blobs: list[WrittenBlob] = []
        packets: dict[str, Packet] = {}
        try:
            for blob, data in self._write_packets(chunks, spec, evict=evict):
                if not (blob.file or evict):
                    break
                blobs.append(blob)
                # Decode the written bytes: the number format may have rounded them.
                packets[blob.content] = codec.decode(bytearray(data), spec.fingerprint, blob.key[:12])
            if self._database.read_only:
                return packets
            with self._database.writing() as connection:
                # A document may have been removed since the question found its chunks.
                table = chunk_table.c.content
                needed = set(connection.execute(sa.select(table).where(table.in_(list(packets)))).scalars())
                self._store.insert(connection, [blob for blob in blobs if blob.content in needed], spec.anchor)
        except BlobsLostError:
            pass  # garbage collection removed the files first; the next question builds the packets again
        finally:
            self._store.discard([blob.file for blob in blobs])
        return packets

    def _commit(self, plan: _Planned, window: _Window) -> bool:
        """Store one document in place of its old version, if any. Return whether there was one."""
        while True:
            try:
                return self._replace(plan, window)
            except BlobsLostError as lost:
                gone = {blob.content for blob in lost.blobs}
                for blob, _ in self._write_packets([c for c in plan.chunks if c.content in gone], self._spec):
                    window.blobs[blob.content] = blob

    def _replace(self, plan: _Planned, window: _Window) -> bool:
        document, chunks = plan.document, plan.chunks
        with self._database.writing() as connection:
            self._configuration.record(connection)
            old = connection.execute(
                sa.select(document_table.c.id).where(document_table.c.name == document.id)
            ).scalar()
            stale = delete_document(connection, old) if old is not None else set()
            row = connection.execute(
                sa.insert(document_table).values(
                    name=document.id, title=document.title, source=document.source, content=document.content,
                    metadata=dict(document.metadata), characters=len(document.text), added=time.time(),
                )
            ).inserted_primary_key  # fmt: skip
            if chunks and row is not None:
                given = self._given_vector(document)
                rows = [
                    _chunk_row(chunk, int(row[0]), window.vectors[chunk.content] if given is None else given)
                    for chunk in chunks
                ]
                connection.execute(sa.insert(chunk_table), rows)
            own = {chunk.content for chunk in chunks}
            self._store.insert(connection, [window.blobs[c] for c in own if c in window.blobs], self._spec.anchor)
            # Chunks that another document of the window needs keep their packets when this one drops them.
            removed = self._store.delete_unused(connection, stale - window.needed)
            raise_generation(connection)
        self._store.blobs.remove(removed)
        self._store.events.emit(DocumentStored(document.id, len(chunks), old is not None))
        return old is not None


def _chunk_row(chunk: Chunk, document_id: int, vector: Vectors) -> dict[str, object]:
    return {
        "name": chunk.id, "document_id": document_id, "ordinal": chunk.ordinal, "start": chunk.start, "stop": chunk.stop, "text": chunk.text,
        "token_ids": np.asarray(chunk.token_ids, dtype="<i4").tobytes(), "content": chunk.content, "vector": vector.astype("<f4").tobytes(),
    }  # fmt: skip


def _check_finite(packet: Packet, storage: Storage) -> None:
    """Raise `KVPacketError` if some states are too large for float16 packets."""
    if storage.name == "float16" and not all(
        dense(part).isfinite().all() for s in packet.states for part in (s.keys, s.values)
    ):
        raise KVPacketError(
            "Some states are too large for float16 packets. Open the store with storage='bfloat16' or 'float32'."
        )


def load_packets(
    store: PacketStore, builder: Builder, configuration: Configuration, chunks: Sequence[Chunk], *, heal: bool = True
) -> LoadedPackets:
    """Return the packets of chunks in context order. Packets that are not stored are built, stored and counted.

    heal: drop damaged packets and rebuild them from the text of their chunks. Raises `DamagedError` for a damaged packet
    otherwise, and if the text is damaged too.
    """
    prints = [configuration.packet_spec(place).fingerprint for place in range(len(chunks))]
    keys = [fingerprint.packet_key(chunk.content) for fingerprint, chunk in zip(prints, chunks, strict=True)]
    found = store.get_each(list(zip(keys, prints, strict=True)))
    damaged = {place: packet for place, packet in enumerate(found) if isinstance(packet, DamagedError)}
    for place, error in damaged.items():
        if (
            not heal
            or content_hash(chunk_tokens(configuration.model.text, chunks[place].text)) != chunks[place].content
        ):
            raise error
    drop_damaged(store.database, store, {keys[place]: prints[place] for place in damaged})
    packets = {place: packet for place, packet in enumerate(found) if isinstance(packet, Packet)}
    missing = [place for place in range(len(chunks)) if place not in packets]
    for first in (True, False):
        places = [place for place in missing if (place == 0) is first]
        if places:
            unique = list({chunks[place].content: chunks[place] for place in places}.values())
            built = builder.build_on_demand(unique, configuration.packet_spec(places[0]))
            packets |= {place: built[chunks[place].content] for place in places}
    ordered = tuple(packets[place] for place in range(len(chunks)))
    return LoadedPackets(ordered, len(missing) - len(damaged), len(damaged))
