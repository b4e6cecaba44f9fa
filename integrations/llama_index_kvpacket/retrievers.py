"""`KVPacketRetriever`: retrieves chunks of a store, or builds packets for what any other retriever finds."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters

import kvpacket_rag
from kvpacket_rag import DocumentStore, Filter
from kvpacket_rag.errors import InputError
from llama_index_kvpacket.filters import translated
from llama_index_kvpacket.nodes import content, with_score

__all__ = ["KVPacketRetriever"]


class KVPacketRetriever(BaseRetriever):
    """Retrieves from a store, or uses another retriever and makes sure that the texts it finds have packets."""

    def __init__(
        self, store: DocumentStore, *, similarity_top_k: int | None = None, filters: MetadataFilters | None = None,
        base_retriever: BaseRetriever | None = None, callback_manager: CallbackManager | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """base_retriever: used instead of the store's search. Texts that the store lacks are added, each as one chunk.

        similarity_top_k: number of chunks to retrieve, default 4. filters: applied before the nearest are chosen. Both
        apply to the store's own search.
        Raises `InputError` if one of them is given with a base retriever, which has its own.
        """
        if base_retriever is not None and (filters is not None or similarity_top_k is not None):
            raise InputError(
                "Set filters and similarity_top_k on the base retriever, which does the search, and not here."
            )
        self.store, self.base_retriever = store, base_retriever
        self.similarity_top_k = 4 if similarity_top_k is None else similarity_top_k
        self.filters = filters
        super().__init__(callback_manager=callback_manager or CallbackManager(), **kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.base_retriever is not None:
            return self._with_packets(self.base_retriever.retrieve(query_bundle))
        filter: Filter | None = None if self.filters is None else translated(self.filters)
        if query_bundle.embedding is not None:
            vector = kvpacket_rag.unit_vectors(query_bundle.embedding)
            hits = self.store.nearest(vector, self.similarity_top_k, filter=filter)
        else:
            hits = self.store.search(query_bundle.query_str, self.similarity_top_k, filter=filter)
        return [with_score(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.base_retriever is None:
            return await asyncio.to_thread(self._retrieve, query_bundle)
        found = await self.base_retriever.aretrieve(query_bundle)
        return await asyncio.to_thread(self._with_packets, found)

    def _with_packets(self, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        """Return the nodes unchanged, after adding texts that the store lacks."""
        kvpacket_rag.adopt(self.store, {content(found.node) for found in nodes})
        return nodes
