"""An LCEL chain: retriever, `format_docs`, prompt, model. Only the retriever and the model differ from other chains."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from kvpacket_rag import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever

QUESTION = "How long does the battery of the Halo 3 last on one charge?"


def format_docs(documents: list[Document]) -> str:
    """Join the texts, as most chains do."""
    return "\n\n".join(document.page_content for document in documents)


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, str]:
    """Build the chain."""
    retriever = KVPacketRetriever(store=kb, k=3)
    prompt = ChatPromptTemplate.from_template(
        "Answer the question from this context.\n\nContext:\n{context}\n\nQuestion: {question}"
    )
    inputs = {"context": retriever | format_docs, "question": RunnablePassthrough()}
    return inputs | prompt | llm | StrOutputParser()


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        for piece in build(store, ChatKVPacket(store=store)).stream(QUESTION):
            print(piece, end="", flush=True)
        print()
