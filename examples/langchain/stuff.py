"""Replace `create_stuff_documents_chain` and `create_retrieval_chain`, so that the model gets documents as packets."""

from __future__ import annotations

from typing import Any

from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable

from kvpacket_rag import DocumentStore
from langchain_kvpacket import (
    ChatKVPacket,
    KVPacketRetriever,
    create_kvpacket_documents_chain,
    create_kvpacket_retrieval_chain,
)

QUESTION = {"input": "How long does the battery of the Halo 3 last on one charge?"}


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, dict[str, Any]]:
    """Build the chain. It returns the answer and the documents."""
    prompt = ChatPromptTemplate([("system", "Answer from these documents.\n\n{context}"), ("human", "{input}")])
    documents = create_kvpacket_documents_chain(
        llm, prompt, document_prompt=PromptTemplate.from_template("From {title}:\n{page_content}")
    )
    return create_kvpacket_retrieval_chain(KVPacketRetriever(store=kb, k=3), documents)


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        result = build(store, ChatKVPacket(store=store)).invoke(QUESTION)
        print(result["answer"])
        for document in result["context"]:
            print("·", document.metadata["source"])
