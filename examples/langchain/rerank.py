"""Your own retriever and reranker. Whatever finds and orders the texts, the answer uses their packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

from kvpacket_rag import DocumentStore
from langchain_kvpacket import (
    ChatKVPacket,
    KVPacketRetriever,
    create_kvpacket_documents_chain,
    create_kvpacket_retrieval_chain,
)

QUESTION = {"input": "How long does the battery of the Halo 3 last on one charge?"}


class SharedWords(BaseDocumentCompressor):
    """A small reranker that counts words shared with the question. Like many, it makes new documents without ids."""

    top_n: int = 3

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Keep the documents that share the most words with the question."""
        asked = set(query.lower().split())
        ranked = sorted(documents, key=lambda d: -len(asked & set(d.page_content.lower().split())))
        return [Document(document.page_content) for document in ranked[: self.top_n]]


class Reranked(BaseRetriever):
    """A retriever that passes its results to a reranker."""

    retriever: BaseRetriever
    reranker: BaseDocumentCompressor

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = self.retriever.invoke(query, config={"callbacks": run_manager.get_child()})
        return list(self.reranker.compress_documents(found, query))


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, dict[str, Any]]:
    """Build the chain. Any inner retriever works: texts that the store lacks get a packet when they are first found."""
    own = Reranked(retriever=KVPacketRetriever(store=kb, k=8), reranker=SharedWords())
    return create_kvpacket_retrieval_chain(
        KVPacketRetriever(base_retriever=own, store=kb), create_kvpacket_documents_chain(llm)
    )


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        print(build(store, ChatKVPacket(store=store)).invoke(QUESTION)["answer"])
