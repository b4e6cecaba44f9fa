"""`KVPacketVectorStore`: a LlamaIndex vector store over a document store, so that all its nodes have packets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

import kvpacket_rag
from kvpacket_rag import DocumentStore, Filter, Hit, PacketModel
from kvpacket_rag.errors import DamagedError, InputError, NotFoundError
from llama_index_kvpacket.filters import translated
from llama_index_kvpacket.nodes import NODES, content, to_document, to_node

__all__ = ["KVPacketVectorStore"]

PERSISTED = "default__vector_store.json"
"""Name of the file that LlamaIndex writes into a folder to which it persists."""
NO_DOCUMENT = "None"
"""The document id that LlamaIndex records for a node without a document."""
MMR_FETCHED = 4
"""Number of nodes considered for each node that "mmr" returns."""


class KVPacketVectorStore(BasePydanticVectorStore):
    """Stores every node as one chunk, found by the node's embedding. Its packet has the text that the model sees.

    Chunks of documents that were added to the store itself are found as well, if the store uses the same
    embedding model (`LlamaIndexEmbedder`).
    """

    stores_text: bool = True
    _store: DocumentStore = PrivateAttr()

    def __init__(self, store: DocumentStore, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._store = store

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component."""
        return "KVPacketVectorStore"

    @property
    def client(self) -> DocumentStore:
        """The document store."""
        return self._store

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Add nodes, or replace those with the same id, and build their packets. Returns their ids.

        Nodes without a visible character have no meaning to search for and are left out. Raises `MismatchError` if
        embeddings have another length than the stored ones, and `InputError` for ids of documents that were not added
        through LlamaIndex.
        """
        new = {node.node_id: to_document(node) for node in nodes if content(node).strip()}
        kvpacket_rag.check_own(self._store, list(new), NODES, "LlamaIndex")
        self._store.add(list(new.values()))
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes in a thread, as `add` does."""
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete the nodes of a document. An unknown document is ignored."""
        if ref_doc_id != NO_DOCUMENT:
            self._remove(lambda metadata: metadata.get("ref_doc_id") == ref_doc_id)

    async def adelete(self, ref_doc_id: str, **kwargs: Any) -> None:
        """Delete the nodes of a document in a thread, as `delete` does."""
        await asyncio.to_thread(self.delete, ref_doc_id, **kwargs)

    def delete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any) -> None:
        """Delete the nodes that match the ids and the filters. Raises `InputError` if neither is given."""
        if node_ids is None and filters is None:
            raise InputError("Give node ids or filters; clear() deletes everything.")
        self._remove(_test(filters), node_ids)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **kwargs: Any
    ) -> None:
        """Delete nodes in a thread, as `delete_nodes` does."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **kwargs)

    def clear(self) -> None:
        """Delete all nodes that were added through LlamaIndex."""
        self._remove(lambda _: True)

    async def aclear(self) -> None:
        """Delete all nodes in a thread, as `clear` does."""
        await asyncio.to_thread(self.clear)

    def _remove(self, chosen: Callable[[Mapping[str, Any]], bool], node_ids: Sequence[str] | None = None) -> None:
        ids = None if node_ids is None else set(node_ids)
        self._store.discard(
            document.id
            for document in self._store.documents()
            if document.source == NODES and (ids is None or document.id in ids) and chosen(document.metadata)
        )

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes that match ids and filters, or all nodes if neither is given. Unknown ids are left out."""
        ids = [document.id for document in self._store.documents()] if node_ids is None else node_ids
        hits = [hit for hit in self._store.of_documents(ids) if hit.source == NODES]
        passes = _test(filters)
        return [to_node(hit) for hit in hits if passes(hit.metadata)]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return nodes in a thread, as `get_nodes` does."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    # -- search ---------------------------------------------------------------------------------------------

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find the nodes nearest to an embedding among those that pass the filters, with their cosines.

        The modes are default and mmr. Raises `InputError` for another mode, or without an embedding.
        """
        if query.query_embedding is None:
            raise InputError("The query has no embedding; give the index an embedding model.")
        if query.similarity_top_k < 1:
            raise InputError(f"similarity_top_k must be at least 1, got {query.similarity_top_k}.")
        vector = kvpacket_rag.unit_vectors(query.query_embedding)
        among = self._among(query)
        mode = VectorStoreQueryMode(query.mode)
        if mode is VectorStoreQueryMode.DEFAULT:
            return _result(self._store.nearest(vector, query.similarity_top_k, filter=among))
        if mode is VectorStoreQueryMode.MMR:
            hits, vectors = self._store.nearest_with_vectors(vector, MMR_FETCHED * query.similarity_top_k, filter=among)
            threshold = kwargs.get("mmr_threshold", query.mmr_threshold)
            _, chosen = get_top_k_mmr_embeddings(
                vector.tolist(), [row.tolist() for row in vectors], similarity_top_k=query.similarity_top_k,
                embedding_ids=list(range(len(hits))), mmr_threshold=threshold,
            )  # fmt: skip
            return _result([hits[number] for number in chosen])
        raise InputError(f"The modes are default and mmr; got {mode.value!r}.")

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find nodes in a thread, as `query` does."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    def _among(self, query: VectorStoreQuery) -> Filter | None:
        """Return the filter that selects the nodes a query may return, or None for all nodes."""
        # LlamaIndex passes empty lists to mean no restriction.
        documents, ids = query.doc_ids or None, set(query.node_ids or ()) or None
        parts = [] if query.filters is None else [translated(query.filters)]
        if documents is not None:
            parts.append({"ref_doc_id": {"$in": documents}})
        if ids is None:
            return {"$and": parts} if parts else None
        return lambda metadata: (
            _node_id(metadata) in ids and all(kvpacket_rag.matches(part, metadata) for part in parts)
        )

    # -- folders --------------------------------------------------------------------------------------------

    def persist(self, persist_path: str, fs: fsspec.AbstractFileSystem | None = None) -> None:
        """Write the location of the store into a file, relative to the file. The store itself is always on disk."""
        if fs is not None:
            raise InputError(
                "The location of the store can only be written to a local file. Persist to a local path, without fs."
            )
        file = Path(persist_path).absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        place = self._store.location
        if self._store.folder is not None:
            with contextlib.suppress(ValueError):  # a path on another drive has no relative form
                place = Path(os.path.relpath(place, file.parent)).as_posix()
        # A list, so that LlamaIndex's own simple vector store fails to load the file instead of opening an empty store.
        file.write_text(json.dumps(["kvpacket_store", place, self._store.namespace]), encoding="utf-8")

    @classmethod
    def from_persist_path(
        cls, persist_path: str, *, model: PacketModel | str | None = None, embedder: Any = None
    ) -> KVPacketVectorStore:
        """Open the store that a file of `persist` names. Give the embedder with which the store was made.

        Raises `NotFoundError` if the file or the store does not exist, `DamagedError` if the file has other content.
        """
        file = Path(persist_path).absolute()
        if not file.exists():
            raise NotFoundError(f"There is no {file}. Persist the storage context first.")
        try:
            kind, place, namespace = json.loads(file.read_text(encoding="utf-8"))
            if kind != "kvpacket_store":
                raise ValueError(kind)
        except (ValueError, TypeError) as error:
            raise DamagedError(
                f"{file} does not describe a KVPacketVectorStore; it was written by another vector store."
            ) from error
        where = place if "://" in place else os.path.normpath(file.parent / place)
        return cls(DocumentStore.open(where, model=model, embedder=embedder, create=False, namespace=namespace))

    @classmethod
    def from_persist_dir(cls, persist_dir: str, **options: Any) -> KVPacketVectorStore:
        """Open the store of the folder to which a storage context was persisted, as `from_persist_path` does."""
        return cls.from_persist_path(str(Path(persist_dir) / PERSISTED), **options)


def _node_id(metadata: Mapping[str, Any]) -> str | None:
    stored = metadata.get("_node_content")
    return json.loads(stored).get("id_") if isinstance(stored, str) else None


def _result(hits: Sequence[Hit]) -> VectorStoreQueryResult:
    nodes = [to_node(hit) for hit in hits]
    return VectorStoreQueryResult(
        nodes=nodes, similarities=[hit.score for hit in hits], ids=[node.node_id for node in nodes]
    )


def _test(filters: MetadataFilters | None) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test of metadata; without filters, all pass."""
    filter = {} if filters is None else translated(filters)
    return lambda metadata: kvpacket_rag.matches(filter, metadata)
