"""Several searches for one question. Results are merged without duplicates, and each text comes from one packet."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

from kvpacket_rag import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever

QUESTION = "How long does the battery of the Halo 3 last on one charge?"


def merged(found: dict[str, list[Document]]) -> str:
    """Join the results of all searches: each text once, in the order in which it first appears."""
    ranked = [document for documents in zip(*found.values(), strict=False) for document in documents]
    return "\n\n".join(dict.fromkeys(document.page_content for document in ranked))


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, str]:
    """Build the chain. It searches for the question, for diverse results, and for the question in other words."""
    nearest = KVPacketRetriever(store=kb, k=2)
    varied = KVPacketRetriever(store=kb, k=2, search_type="mmr")
    other_words = RunnableLambda(lambda question: f"{question} battery charge days") | nearest
    searches = RunnableParallel(nearest=nearest, varied=varied, other=other_words)
    prompt = ChatPromptTemplate([("system", "Answer from the text.\n\n{context}"), ("human", "{question}")])
    return {"context": searches | merged, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        print(build(store, ChatKVPacket(store=store)).invoke(QUESTION))
