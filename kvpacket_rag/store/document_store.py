"""The document store: it holds documents, and finds the chunks nearest to a question, with their packets."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpacket_rag.corpus.document import Chunk, Document, StoredDocument
from kvpacket_rag.corpus.ingestion import Paths, check_sources, read_paths, vanished
from kvpacket_rag.corpus.splitter import chunk_tokens
from kvpacket_rag.display.html import store_html
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import NotFoundError, check_count, check_kind, check_question
from kvpacket_rag.events import AddReport, BuildListener, Events, Hook, Searched
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.fingerprint import DEFAULT_NAMESPACE, content_hash
from kvpacket_rag.packets.packet import LoadedPackets
from kvpacket_rag.retrieval.embedder import Embedder, Vectors, unit_vectors
from kvpacket_rag.retrieval.filters import Filter
from kvpacket_rag.retrieval.search import Found, Hit, Search
from kvpacket_rag.store.blobs.object_store import DEFAULT_CACHE_BYTES
from kvpacket_rag.store.builder import Builder, load_packets
from kvpacket_rag.store.bundles.exporter import ExportReport, export
from kvpacket_rag.store.bundles.in_place import open_bundled
from kvpacket_rag.store.chunk_rows import StoredChunks
from kvpacket_rag.store.configuration import Configuration
from kvpacket_rag.store.inspection import StoreInfo, inspect, list_documents
from kvpacket_rag.store.integrity import VerifyReport, verify
from kvpacket_rag.store.location import StoreLocation, open_location
from kvpacket_rag.store.packet_store import DEFAULT_RAM_BYTES, PacketStore
from kvpacket_rag.store.removal import remove_document
from kvpacket_rag.store.repair import drop_damaged, drop_other_packets, rebuild_missing
from kvpacket_rag.store.settings import StoreSettings, asked

__all__ = ["DocumentStore"]


class DocumentStore:
    """Documents with their chunks and vectors, and a packet for each chunk.

    They are stored in a folder, or in a database and an object store. Threads may share one store, and several
    processes may open the same store at the same time.
    """

    def __init__(
        self, place: StoreLocation, configuration: Configuration, *, ram_bytes: int = DEFAULT_RAM_BYTES, hooks: Sequence[Hook] = (),
        heal: bool = True,
    ) -> None:  # fmt: skip
        """Use `DocumentStore.open` instead."""
        self._place, self._configuration, self._database = place, configuration, place.database
        self.location, self.folder, self.namespace = place.location, place.folder, place.namespace
        self.events, self._heal = Events(hooks), heal
        self._packets = PacketStore(place.database, place.blobs, ram_bytes=ram_bytes, events=self.events)
        self._chunks = StoredChunks(place.database)
        self._search = Search(self._chunks)
        self.adopting = threading.Lock()
        """Lock held while missing texts are looked up and added."""

    @classmethod
    def open(
        cls, location: str | Path, *, model: Engine | str | None = None, embedder: Embedder | str | None = None, create: bool = True,
        chunk_tokens: int | None = None, anchor: Anchor | str | None = None, first_anchor: Anchor | str | None = None,
        storage: str | None = None, ram_bytes: int = DEFAULT_RAM_BYTES, namespace: str = DEFAULT_NAMESPACE, blobs: str | None = None,
        blob_options: Mapping[str, Any] | None = None, cache_bytes: int = DEFAULT_CACHE_BYTES, read_only: bool = False,
        verify: str | Path | None = None, hooks: Sequence[Hook] = (), heal: bool = True,
    ) -> DocumentStore:  # fmt: skip
        """Open the store at `location`. Create it if there is none and `create` is set.

        location: a folder, `postgresql://host/name`, or a bundle, which is read-only.
        model, embedder: a loaded one or a name, loaded on first use; default the one the store was built with.
        chunk_tokens, anchor, first_anchor, storage: see `StoreSettings`; fixed by the first document.
        ram_bytes: most bytes of packets cached in memory. blob_options: passed to fsspec.
        namespace: stores in different namespaces share nothing. blobs: where packets are stored, such as
        `s3://bucket/prefix`; recorded; default the folder. cache_bytes: most bytes of copies of such packets here.
        read_only: write nothing; missing packets are built and not stored. verify: public key that a bundle's signature
        must match. hooks: called with each event, see `events`. heal: rebuild damaged packets from the text.
        Raises `NotFoundError` if there is no store to open, `MismatchError` if the store was built with settings other
        than those given, `DamagedError` if its database is damaged, `SignatureError`.
        """
        check_kind(location, (str, Path), "The location of a store", "Give a folder, an address or a bundle.")
        given = asked(model, embedder, anchor, first_anchor, chunk_tokens, storage)
        loaded = (None if isinstance(model, str) else model, None if isinstance(embedder, str) else embedder)
        if read_only and Path(location).is_file():
            place = open_bundled(Path(location).absolute(), namespace, verify=verify)
        else:
            place = open_location(
                location, namespace=namespace, blobs=blobs, create=create, blob_options=blob_options, cache_bytes=cache_bytes, read_only=read_only,
            )  # fmt: skip
        try:
            configuration = Configuration(place.database, place.location, namespace, given, *loaded)
        except BaseException:
            place.close()
            raise
        return cls(place, configuration, ram_bytes=ram_bytes, hooks=hooks, heal=heal)

    def __repr__(self) -> str:
        info = self.info()
        return f"DocumentStore({self.location!r}, {info.documents} documents, {info.packets} packets, {self.settings.model})"

    def _repr_html_(self) -> str:
        return store_html(self.location, self.namespace, self.info().rows)

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; the store cannot be used afterwards."""
        self._packets.close()
        self._place.close()

    @property
    def settings(self) -> StoreSettings:
        """The settings of the store."""
        return self._configuration.settings

    @property
    def model(self) -> Engine:
        """The generator, loaded on first use."""
        return self._configuration.model

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded on first use."""
        return self._configuration.embedder

    def load(self) -> None:
        """Load model and embedder now instead of at the first question."""
        self._configuration.packet_spec(1)
        self._configuration.embed("ready")

    def _builder(self) -> Builder:
        return Builder(self._database, self._packets, self._configuration)

    def add(self, documents: Iterable[Document], *, progress: BuildListener | None = None) -> AddReport:
        """Add documents, or replace those with the same id. Each becomes visible as a whole, once it is finished.

        Unchanged documents cost nothing, and chunks with equal text share one packet. An interruption keeps what was
        finished. progress: called whenever a chunk is encoded or a document is finished.
        """
        self._configuration.prepare()
        return self._builder().build(documents, progress)

    def add_paths(self, paths: Paths, *, progress: BuildListener | None = None) -> AddReport:
        """Add files, or folders with all readable files in them. Ids are paths relative to the folder's parent.

        If a file was added before and now holds fewer documents (JSON lines), the others are removed. Raises
        `DocumentError` for a path that does not exist and for a file named directly that cannot be read. The report
        lists files inside folders that cannot be read.
        """
        read = read_paths(paths)
        check_sources(self.documents(), read.documents, self.location)
        report = self.add(read.documents, progress=progress)
        self.discard(vanished(self.documents(), read))
        return replace(report, failed=read.failed)

    def remove(self, document_id: str) -> None:
        """Remove a document with its chunks, its vectors and the packets that no other document shares.

        Raises `NotFoundError` if no document has this id.
        """
        remove_document(self._database, self._packets, document_id, self.location)

    def discard(self, document_ids: Iterable[str]) -> None:
        """Remove documents as `remove` does, and ignore unknown ids."""
        for name in document_ids:
            with contextlib.suppress(NotFoundError):
                self.remove(name)

    def documents(self) -> list[StoredDocument]:
        """Return the documents, sorted by id."""
        return list_documents(self._database)

    def chunks(self) -> list[Chunk]:
        """Return all chunks, in the order in which they were added."""
        return self._chunks.every_chunk()

    def search(self, question: str, k: int = 4, *, filter: Filter | None = None) -> list[Hit]:
        """Return the k chunks nearest to the question, best first; fewer if the store has fewer.

        filter: applied before the k nearest are chosen. Raises `InputError` for k below 1 or an empty question.
        """
        check_question(question)
        return self.nearest(self.embed(question), k, filter=filter)

    def embed(self, question: str) -> Vectors:
        """Return the unit vector [dimension] of a question."""
        return self._configuration.embed(question)

    def nearest(self, vector: Vectors, k: int = 4, *, filter: Filter | None = None) -> list[Hit]:
        """Search as `search` does, for a vector [dimension] of the store's embedder with any norm but zero."""
        check_count(k, "k")
        began = time.perf_counter()
        found = self._search.nearest(self._configuration.check_vector(unit_vectors(vector)), k, filter)
        self.events.emit(Searched(len(found), time.perf_counter() - began))
        return found

    def find(self, text: str) -> list[Found]:
        """Find the chunks that occur word for word in a text, from left to right and without overlaps.

        Chunks shorter than `kvpacket_rag.retrieval.text_finder.SHORTEST` characters are not found.
        """
        return self._search.find(text)

    def find_whole(self, text: str) -> Chunk | None:
        """Return the chunk whose text is exactly this one, however short, or None if there is none."""
        hits = self._chunks.by_content(content_hash(chunk_tokens(self.model.text, text)))
        return next((hit.chunk for hit in hits if hit.chunk.text == text), None)

    def get(self, chunk_ids: Sequence[str]) -> dict[str, Hit]:
        """Return chunks by id, with score 0; unknown ids are left out."""
        return self._chunks.by_id(chunk_ids)

    def of_documents(self, document_ids: Sequence[str]) -> list[Hit]:
        """Return the chunks of documents, with score 0, in the order they were added; unknown ids are left out."""
        return self._chunks.by_document(document_ids)

    def nearest_with_vectors(
        self, vector: Vectors, k: int, *, filter: Filter | None = None
    ) -> tuple[list[Hit], list[Vectors]]:
        """Search as `nearest` does, and also return each chunk's unit vector [dimension], to choose among them."""
        return self._search.with_vectors(self.nearest(vector, k, filter=filter))

    def packets(self, chunks: Sequence[Chunk]) -> LoadedPackets:
        """Return the packets of chunks in context order. Missing and damaged packets are built, stored and counted.

        Raises `DamagedError` for a damaged packet if the store was opened with heal=False, or if its text is damaged too.
        """
        return load_packets(self._packets, self._builder(), self._configuration, chunks, heal=self._heal)

    @property
    def max_bytes(self) -> int | None:
        """Limit on the bytes of packet files, or None. Setting it evicts the least recently used packets at once."""
        return self._packets.cap.limit()

    @max_bytes.setter
    def max_bytes(self, limit: int | None) -> None:
        self._packets.blobs.remove(self._packets.cap.change(limit))

    def forget_packets(self) -> None:
        """Empty the in-memory cache of packets, so that the next question reads them from disk."""
        self._packets.forget()

    def info(self) -> StoreInfo:
        """Count what the store holds."""
        return inspect(self._database)

    def verify(self, *, repair: bool = False, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check every stored byte. repair: delete what is damaged or left over, and rebuild packets from their text."""
        report = self._verify(progress)
        if not repair:
            return report
        drop_damaged(self._database, self._packets, report)
        if report.damaged or report.without_packet:
            self.build_missing()
        return replace(self._verify(), repaired=len(report.damaged))

    def _verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        return verify(self._database, self._packets.blobs, self.events, progress)

    def build_missing(self, place: int = 1, progress: Callable[[int, int], None] | None = None) -> None:
        """Build missing packets now instead of on demand. place: 0 is the first place in a context, 1 any later one."""
        rebuild_missing(self._database, self._packets, self._chunks, self._configuration, place, progress)

    def remake(
        self, anchor: Anchor | None = None, *, texts: Sequence[str] = (), adapter: Adapter | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        """Rebuild all packets with another anchor, or with another adapter, which is then saved in the store.

        anchor: default the anchor of the adapter, else the neutral passages; texts: the passages of a corpus anchor.
        After an interruption, missing packets are built on demand or by the next call. Raises `AdapterError` if the
        adapter belongs to another model.
        """
        self._configuration.change(anchor, texts, adapter)
        self.build_missing(progress=progress)
        drop_other_packets(self._database, self._packets, self._configuration)

    def export(
        self, path: str | Path, *, documents: Sequence[str] | None = None, since: str | Path | None = None,
        sign: str | Path | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:  # fmt: skip
        """Write documents (default all) or the changes since an earlier bundle to a file; see `exporter.export`."""
        earlier = None if since is None else Path(since)
        return export(
            self._database, self._packets, Path(path), only=documents, since=earlier, sign=sign, progress=progress
        )

    def collect_garbage(self) -> list[str]:
        """Remove files and packets that nothing refers to. Return the removed files."""
        return self._packets.collect_garbage()
