"""`KVPacketRetriever`: retrieves chunks of a store, or builds packets for what any other retriever finds."""

from __future__ import annotations

from typing import Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor
from pydantic import ConfigDict, Field, model_validator

import kvpacket_rag
from kvpacket_rag import Chunk, DocumentStore, Filter, Hit
from kvpacket_rag.errors import InputError
from langchain_kvpacket.documents import to_document
from langchain_kvpacket.searching import diverse, relevance

__all__ = ["KVPacketRetriever"]


class KVPacketRetriever(BaseRetriever):
    """Retrieves from a store, or uses another retriever and makes sure that the texts it finds have packets."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: DocumentStore
    base_retriever: Runnable | None = None  # type: ignore[type-arg]
    """Retriever to use instead of the store's search: a retriever, bound or configured, or a chain that returns
    documents. Texts that the store lacks are added to it, each as a document of one chunk.
    """
    k: int = Field(default=4, ge=1)
    """Documents to return; may be given at call time. Results of `base_retriever` are cut to k only if k is given."""
    filter: Filter | None = None
    """Metadata values that documents must have, or a function of the metadata. It applies to the store's own search."""
    search_type: Literal["similarity", "mmr", "similarity_score_threshold"] = "similarity"
    score_threshold: float = 0.0
    """Minimum relevance, 0 to 1: (1 + cosine) / 2."""
    fetch_k: int = 20
    """Number of nearest chunks from which "mmr" chooses."""
    lambda_mult: float = 0.5
    """For "mmr": 1 for similarity only, 0 for diversity only."""

    @model_validator(mode="after")
    def _one_search(self) -> Self:
        own = {"filter", "search_type", "score_threshold", "fetch_k", "lambda_mult"} & self.model_fields_set
        if self.base_retriever is not None and own:
            raise InputError(
                f"Set {', '.join(sorted(own))} on the base retriever, which does the search, and not here."
            )
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None,
        filter: Filter | None = None, **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        most = self._most(k)
        if self.base_retriever is None:
            hits = self._search(query, self.k if most is None else most, filter if filter is not None else self.filter)
            return [to_document(hit, named=True) for hit in hits]
        found = self.base_retriever.invoke(query, run_manager_config(run_manager), **_given(filter, kwargs))
        return self._with_packets(found[:most])

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None,
        filter: Filter | None = None, **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        if self.base_retriever is None:
            return await run_in_executor(
                None, self._get_relevant_documents, query, run_manager=run_manager.get_sync(), k=k, filter=filter
            )
        most = self._most(k)
        found = await self.base_retriever.ainvoke(query, run_manager_config(run_manager), **_given(filter, kwargs))
        return await run_in_executor(None, self._with_packets, found[:most])

    def _most(self, k: int | None) -> int | None:
        """Return how many documents to return at most, or None if no number was given."""
        if k is not None and k < 1:
            raise InputError(f"k must be at least 1, got {k}.")
        return k if k is not None else self.k if "k" in self.model_fields_set else None

    def _search(self, query: str, k: int, filter: Filter | None) -> list[Hit]:
        if self.search_type == "mmr":
            vector = self.store.embed(query)
            return diverse(self.store, vector, k, fetch_k=self.fetch_k, lambda_mult=self.lambda_mult, filter=filter)
        hits = self.store.search(query, k, filter=filter)
        if self.search_type == "similarity_score_threshold":
            return [hit for hit in hits if relevance(hit.score) >= self.score_threshold]
        return hits

    def _with_packets(self, documents: list[Document]) -> list[Document]:
        """Return documents with references to their chunks. Texts that the store lacks are first added, all at once."""
        chunks = kvpacket_rag.adopt(self.store, {document.page_content for document in documents})
        return [_named(document, chunks.get(document.page_content)) for document in documents]

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """Return names for tracing."""
        return LangSmithRetrieverParams(
            ls_retriever_name="kvpacket",
            ls_vector_store_provider="kvpacket",
            ls_embedding_provider=self.store.settings.embedder,
        )


def run_manager_config(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
) -> RunnableConfig:
    """Return the configuration for an inner runnable, so that tracing shows it as part of this run."""
    return RunnableConfig(callbacks=run_manager.get_child())


def _given(filter: Filter | None, others: dict[str, Any]) -> dict[str, Any]:
    return others if filter is None else {**others, "filter": filter}


def _named(document: Document, chunk: Chunk | None) -> Document:
    """Return the document with a reference to its chunk, if it has one."""
    if chunk is None:
        return document
    metadata = {**document.metadata, "kvpacket": chunk.reference}
    return Document(document.page_content, metadata=metadata, id=document.id or chunk.id)
