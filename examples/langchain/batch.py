"""Ten questions at once. Threads share the store and the model, which runs one forward pass at a time."""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel

from kvpacket_rag import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever

QUESTIONS = [
    "How long does the battery of the Halo 3 last on one charge?",
    "How is the battery of the Halo 3 charged?",
    "How long does a full charge take?",
    "Who founded Tidewater Instruments?",
    "When was Tidewater Instruments founded?",
    "Where is Tidewater Instruments?",
    "How is the hull cleaned?",
    "How often are the sensors cleaned?",
    "What should never be used for cleaning?",
    "What was the first product of the company?",
]


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, dict[str, Any]]:
    """Build the chain, which returns each question with its answer."""
    retriever = KVPacketRetriever(store=kb, k=2)
    joined = retriever | (lambda documents: "\n\n".join(document.page_content for document in documents))
    prompt = ChatPromptTemplate.from_template(
        "{context}\n\nUsing the text above, answer the question.\nQuestion: {question}"
    )
    question = RunnableLambda(lambda text: text)
    answer = {"context": joined, "question": question} | prompt | llm | StrOutputParser()
    return RunnableParallel(question=question, answer=answer)


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        for result in build(store, ChatKVPacket(store=store, max_tokens=48)).batch(QUESTIONS):
            print(f"{result['question']}\n  {result['answer']}")
