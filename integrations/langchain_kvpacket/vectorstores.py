"""`KVPacketVectorStore`: a LangChain vector store over a document store, so that all its chunks have packets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

import kvpacket_rag
from kvpacket_rag import DocumentStore, Embedder, Filter, Hit, PacketModel
from kvpacket_rag.errors import InputError
from langchain_kvpacket.documents import WHOLE, to_document
from langchain_kvpacket.embeddings import KVPacketEmbeddings, LangChainEmbedder
from langchain_kvpacket.searching import diverse, relevance

__all__ = ["KVPacketVectorStore"]


class KVPacketVectorStore(VectorStore):
    """A vector store that stores each document as one chunk. Split documents with a text splitter first.

    Chunks of documents that were added to the store itself are found as well, under their chunk ids.
    """

    def __init__(self, store: DocumentStore) -> None:
        self.store = store

    @property
    def embeddings(self) -> Embeddings:
        """The store's embedder."""
        embedder = self.store.embedder
        return embedder.embeddings if isinstance(embedder, LangChainEmbedder) else KVPacketEmbeddings(embedder)

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings | None = None, metadatas: list[dict[str, Any]] | None = None, *,
        ids: list[str] | None = None, store: DocumentStore | None = None, folder: str | Path | None = None,
        model: PacketModel | str | None = None, **kwargs: Any,
    ) -> KVPacketVectorStore:  # fmt: skip
        """Build a vector store of texts, in `store` or in a store opened in `folder` with `model`.

        embedding: default the store's own. Raises `InputError` unless exactly one of store and folder is given.
        """
        if (store is None) == (folder is None):
            raise InputError("Give either a store, or a folder in which to open one.")
        embedder = None if embedding is None else _embedder(embedding)
        if store is None:
            store = DocumentStore.open(folder or "", model=model, embedder=embedder)
        elif embedder is not None and embedder.name != store.embedder.name:
            raise InputError(
                f"The store was made with the embedder {store.embedder.name}, but {embedder.name} was given. Leave it out, or "
                "open another store with it: DocumentStore.open(folder, embedder=LangChainEmbedder(...))."
            )
        made = cls(store)
        made.add_texts(texts, metadatas, ids=ids, **kwargs)
        return made

    def add_documents(
        self, documents: list[Document], *, ids: Sequence[str | None] | None = None, **_: Any
    ) -> list[str]:
        """Add documents, or replace those with the same id, and build their packets.

        ids: used instead of the documents' own ids; a missing id is generated. If two documents have the same id, the
        last one counts.
        Returns the ids. Raises `InputError` if the numbers differ, or for a document without text or with metadata
        that is not JSON.
        """
        given = [document.id for document in documents] if ids is None else list(ids)
        if len(given) != len(documents):
            raise InputError(f"Give one id for each document; got {len(given)} ids for {len(documents)} documents.")
        names = [name or str(uuid.uuid4()) for name in given]
        new = {
            name: kvpacket_rag.Document(
                document.page_content, id=name, source=WHOLE, metadata=document.metadata, whole=True
            )
            for name, document in zip(names, documents, strict=True)
        }
        kvpacket_rag.check_own(self.store, list(new), WHOLE, "LangChain")
        self.store.add(list(new.values()))
        return names

    def delete(self, ids: list[str] | None = None, **_: Any) -> bool:
        """Delete documents with their packets. Without ids, delete all documents that were added through LangChain.

        Unknown ids are ignored. Returns False if some ids belong to the store's own documents or their chunks, which
        are not deleted.
        """
        if ids is None:
            ids = [document.id for document in self.store.documents() if document.source == WHOLE]
        own = {hit.chunk.document: hit.source == WHOLE for hit in self.store.of_documents(ids)}
        self.store.discard(name for name, ours in own.items() if ours)
        return all(own.values()) and not self.store.get(ids)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents by id, in the requested order. Unknown ids are left out."""
        whole = {hit.chunk.document: hit for hit in self.store.of_documents(ids) if hit.source == WHOLE}
        hits = {**self.store.get([name for name in ids if name not in whole]), **whole}
        return [to_document(hits[name], named=False) for name in ids if name in hits]

    # -- search ---------------------------------------------------------------------------------------------

    def similarity_search(self, query: str, k: int = 4, filter: Filter | None = None, **_: Any) -> list[Document]:
        """Find the k documents nearest to a question, best first. filter: applied before the k nearest are chosen."""
        return _documents(self.store.search(query, k, filter=filter))

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **_: Any
    ) -> list[tuple[Document, float]]:
        """Find the k documents nearest to a question, with their cosines to it: -1 to 1, higher is nearer."""
        hits = self.store.search(query, k, filter=filter)
        return [(to_document(hit, named=False), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **_: Any
    ) -> list[Document]:
        """Find the k documents nearest to a vector."""
        return _documents(self.store.nearest(np.asarray(embedding, dtype=np.float32), k, filter=filter))

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *, filter: Filter | None = None,
        **_: Any,
    ) -> list[Document]:  # fmt: skip
        """Find k documents that are near a question and differ from each other, among the `fetch_k` nearest."""
        embedding = self.store.embed(query).tolist()
        return self.max_marginal_relevance_search_by_vector(embedding, k, fetch_k, lambda_mult, filter=filter)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *,
        filter: Filter | None = None, **_: Any,
    ) -> list[Document]:  # fmt: skip
        """Find k documents that are near a vector and differ from each other, among the `fetch_k` nearest."""
        vector = kvpacket_rag.unit_vectors(embedding)
        return _documents(diverse(self.store, vector, k, fetch_k=fetch_k, lambda_mult=lambda_mult, filter=filter))

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return relevance


def _embedder(embedding: Embeddings) -> Embedder:
    return embedding.embedder if isinstance(embedding, KVPacketEmbeddings) else LangChainEmbedder(embedding)


def _documents(hits: Iterable[Hit]) -> list[Document]:
    return [to_document(hit, named=False) for hit in hits]
