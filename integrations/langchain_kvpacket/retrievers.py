"""`KVPacketRetriever`: chunks of a store, or of any other retriever with a packet for each."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field

import kvpacket_rag
from kvpacket_rag import Chunk, DocumentStore, Filter, Hit
from langchain_kvpacket.documents import to_document
from langchain_kvpacket.searching import diverse, relevance

__all__ = ["KVPacketRetriever"]


class KVPacketRetriever(BaseRetriever):
    """Retrieves from a store, or lets another retriever do so and sees to it that what it finds has packets."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: DocumentStore
    base_retriever: BaseRetriever | None = None
    """Retrieves in place of the store. Texts the store lacks are added to it, each as a document of one chunk."""
    k: int = Field(default=4, ge=1)
    """Documents to return; may be given at call time. What `base_retriever` finds is cut only if it is given."""
    filter: Filter | None = None
    """Metadata values, or a function of the metadata, that documents must have; for the store's own search."""
    search_type: Literal["similarity", "mmr", "similarity_score_threshold"] = "similarity"
    score_threshold: float = 0.0
    """Least relevance, 0 to 1: (1 + cosine) / 2."""
    fetch_k: int = 20
    """Nearest chunks among which "mmr" chooses."""
    lambda_mult: float = 0.5
    """For "mmr": 1 for nearness only, 0 for variety only."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        if self.base_retriever is None:
            hits = self._search(query, k or self.k, filter or self.filter)
            return [to_document(hit, named=True) for hit in hits]
        config = {"callbacks": run_manager.get_child()}
        found = self.base_retriever.invoke(query, config=config, **kwargs)  # type: ignore[arg-type]
        return self._with_packets(found[: self._most(k)])

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        if self.base_retriever is None:
            return await run_in_executor(
                None, self._get_relevant_documents, query, run_manager=run_manager.get_sync(), k=k, **kwargs
            )
        config = {"callbacks": run_manager.get_child()}
        found = await self.base_retriever.ainvoke(query, config=config, **kwargs)  # type: ignore[arg-type]
        return await run_in_executor(None, self._with_packets, found[: self._most(k)])

    def _most(self, k: int | None) -> int | None:
        return k or (self.k if "k" in self.model_fields_set else None)

    def _search(self, query: str, k: int, filter: Filter | None) -> list[Hit]:
        if self.search_type == "mmr":
            vector = kvpacket_rag.unit_vectors(self.store.embedder.embed([query])[0])
            return diverse(self.store, vector, k, fetch_k=self.fetch_k, lambda_mult=self.lambda_mult, filter=filter)
        hits = self.store.search(query, k, filter=filter)
        if self.search_type == "similarity_score_threshold":
            return [hit for hit in hits if relevance(hit.score) >= self.score_threshold]
        return hits

    def _with_packets(self, documents: list[Document]) -> list[Document]:
        """Give documents with the chunk each is; texts the store lacks are added first, in one go."""
        chunks = kvpacket_rag.adopt(self.store, {document.page_content for document in documents})
        return [_named(document, chunks.get(document.page_content)) for document in documents]

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """Names for tracing."""
        return LangSmithRetrieverParams(
            ls_retriever_name="kvpacket",
            ls_vector_store_provider="kvpacket",
            ls_embedding_provider=self.store.settings.embedder,
        )


def _named(document: Document, chunk: Chunk | None) -> Document:
    """The document with a reference to its chunk, if it has one."""
    if chunk is None:
        return document
    metadata = {**document.metadata, "kvpacket": chunk.reference}
    return Document(document.page_content, metadata=metadata, id=document.id or chunk.id)
