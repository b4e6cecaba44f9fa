"""A conversation. A follow-up question is asked with the earlier turns. Its documents come from the same packets."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable

from kvpacket_rag import DocumentStore
from langchain_kvpacket import (
    ChatKVPacket,
    KVPacketRetriever,
    create_kvpacket_documents_chain,
    create_kvpacket_retrieval_chain,
)

QUESTIONS = ["How long does the battery of the Halo 3 last on one charge?", "How is the battery of the Halo 3 charged?"]


def build(kb: DocumentStore, llm: ChatKVPacket) -> Runnable[Any, dict[str, Any]]:
    """Build the chain. Its prompt has a place for `chat_history`."""
    return create_kvpacket_retrieval_chain(KVPacketRetriever(store=kb, k=3), create_kvpacket_documents_chain(llm))


def converse(chain: Runnable[Any, dict[str, Any]], questions: list[str]) -> list[str]:
    """Ask one question after another, each with the earlier turns."""
    history: list[BaseMessage] = []
    for question in questions:
        answer = chain.invoke({"input": question, "chat_history": history})["answer"]
        history += [HumanMessage(question), AIMessage(answer)]
    return [message.text for message in history[1::2]]


if __name__ == "__main__":
    with DocumentStore.open("handbook-kb") as store:
        store.add_paths(["examples/corpus"])
        for asked, answered in zip(
            QUESTIONS, converse(build(store, ChatKVPacket(store=store)), QUESTIONS), strict=True
        ):
            print(f"{asked}\n  {answered}")
