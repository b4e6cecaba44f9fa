"""Chains that users write, with the default model: they answer as with full prefill, from packets."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda

from kvpacket_rag.bench.measures import f1
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore
from langchain_kvpacket import (
    ChatKVPacket,
    KVPacketRetriever,
    create_kvpacket_documents_chain,
    create_kvpacket_retrieval_chain,
)
from tests.support.watching import example


class Seen(BaseCallbackHandler):
    """What was retrieved, and what models were asked and answered."""

    def __init__(self) -> None:
        self.prompts: dict[UUID, str] = {}
        self.messages: dict[UUID, AIMessage] = {}
        self.retrieved: list[list[Document]] = []

    def on_retriever_end(self, documents: list[Document], **_: Any) -> None:
        self.retrieved.append(list(documents))

    def on_chat_model_start(self, _: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **__: Any) -> None:
        self.prompts[run_id] = "\n".join(message.text for message in messages[0])

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        self.messages[run_id] = response.generations[0][0].message

    def share(self, store: DocumentStore, texts: set[str]) -> float:
        """Share of the tokens of these texts that came from packets, over all prompts together."""
        from_packets = sum(m.response_metadata["kvpacket"]["packet_tokens"] for m in self.messages.values())
        separators = sum(
            len(m.response_metadata["kvpacket"]["hits"]) * len(store.model.text.separator)
            for m in self.messages.values()
        )
        context = sum(len(store.model.text.plain(t)) for t in texts) * len(self.messages)
        return (from_packets - separators) / context


def answer_of(result: Any) -> str:
    return result if isinstance(result, str) else result["answer"]


def both(store: DocumentStore, build: Any, question: Any) -> tuple[str, str, Seen]:
    """Answers of one chain from packets and with full prefill."""
    seen = Seen()
    ours = build(store, ChatKVPacket(store=store, max_tokens=32)).invoke(question, config={"callbacks": [seen]})
    theirs = build(store, ChatKVPacket(store=store, max_tokens=32, method="full")).invoke(question)
    return answer_of(ours), answer_of(theirs), seen


@pytest.mark.parametrize("name", ["lcel", "stuff", "rerank", "multi_query"])
def test_a_chain_answers_from_packets_as_with_full_prefill(handbook_store: DocumentStore, name: str):
    module = example(f"langchain/{name}.py")
    ours, theirs, seen = both(handbook_store, module.build, module.QUESTION)
    assert "94 days" in ours
    assert "94 days" in theirs
    assert f1(ours, [theirs]) > 0.5
    # What the prompt was made of: all that was found, or what the outermost retriever left of it.
    found = seen.retrieved if name == "multi_query" else seen.retrieved[-1:]
    assert seen.share(handbook_store, {d.page_content for documents in found for d in documents}) >= 0.9


def test_a_conversation_goes_on_from_packets_and_answers_as_with_full_prefill(handbook_store: DocumentStore):
    module = example("langchain/conversation.py")
    seen = Seen()
    chain = module.build(handbook_store, ChatKVPacket(store=handbook_store, max_tokens=32))
    answers = module.converse(chain.with_config(callbacks=[seen]), module.QUESTIONS)
    assert "94 days" in answers[0]
    for documents, message in zip(seen.retrieved, seen.messages.values(), strict=True):
        assert message.response_metadata["kvpacket"]["hits"] == [d.id for d in documents]
    again = Seen()
    assert module.converse(chain.with_config(callbacks=[again]), module.QUESTIONS) == answers
    assert all(m.response_metadata["kvpacket"]["packets_built"] == 0 for m in again.messages.values())
    full = module.build(handbook_store, ChatKVPacket(store=handbook_store, max_tokens=32, method="full"))
    theirs = module.converse(full, module.QUESTIONS)
    assert sum(f1(ours, [their]) for ours, their in zip(answers, theirs, strict=True)) / len(theirs) > 0.5


def test_a_batch_of_ten_equals_ten_questions_and_answers_as_with_full_prefill(handbook_store: DocumentStore):
    module = example("langchain/batch.py")
    chain = module.build(handbook_store, ChatKVPacket(store=handbook_store, max_tokens=12))
    seen = Seen()
    found = chain.batch(module.QUESTIONS, config={"callbacks": [seen]})
    assert [result["question"] for result in found] == module.QUESTIONS
    assert len(module.QUESTIONS) == len(seen.messages) == 10
    retrieved = {tuple(d.id for d in documents) for documents in seen.retrieved}
    assert {tuple(m.response_metadata["kvpacket"]["hits"]) for m in seen.messages.values()} == retrieved
    for number in (0, 4, 9):
        assert chain.invoke(module.QUESTIONS[number])["answer"] == found[number]["answer"]
    full = module.build(handbook_store, ChatKVPacket(store=handbook_store, max_tokens=12, method="full"))
    theirs = full.batch(module.QUESTIONS)
    same = [f1(ours["answer"], [their["answer"]]) for ours, their in zip(found, theirs, strict=True)]
    assert sum(same) / len(same) > 0.5


# -- the documents chain, on a tiny model -----------------------------------------------------------------------


@pytest.fixture
def chat(store: DocumentStore) -> ChatKVPacket:
    return ChatKVPacket(store=store, max_tokens=8)


def documents(store: DocumentStore, k: int = 2) -> list[Document]:
    return KVPacketRetriever(store=store, k=k).invoke("battery")


async def test_the_documents_chain_streams_batches_and_runs_asynchronously(chat: ChatKVPacket, store: DocumentStore):
    chain = create_kvpacket_documents_chain(chat).with_config(tags=["mine"])
    inputs = {"context": documents(store), "question": "How long?"}
    text = chain.invoke(inputs)
    assert isinstance(text, str)
    assert len(list(chain.stream(inputs))) >= 2
    assert "".join(chain.stream(inputs)) == text
    assert await chain.ainvoke(inputs) == text
    assert "".join([piece async for piece in chain.astream(inputs)]) == text
    assert chain.batch([inputs, inputs]) == [text, text]
    assert await chain.abatch([inputs]) == [text]
    assert chain.invoke({"context": inputs["context"], "input": "How long?"}) == text


PROMPTS = {
    "placeholder": ChatPromptTemplate([MessagesPlaceholder("context"), ("human", "{question}")]),
    "default": None,
    "system": ChatPromptTemplate([("system", "Use:\n\n{context}"), ("human", "{input}")]),
    "between": ChatPromptTemplate([("human", "<doc>{context}</doc> {question}")]),
    "string": PromptTemplate.from_template("{context}\n\n{question}"),
    "twice": ChatPromptTemplate([("system", "{context}"), ("human", "{context}\n\n{question}")]),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_documents_stand_where_the_prompt_puts_them_and_come_from_packets(
    chat: ChatKVPacket, store: DocumentStore, name: str
):
    seen = Seen()
    found = documents(store)
    chain = create_kvpacket_documents_chain(chat, PROMPTS[name])
    chain.invoke({"context": found, "question": "How long?"}, config={"callbacks": [seen]})
    (prompt,), (message,) = seen.prompts.values(), seen.messages.values()
    assert "\n\n".join(d.page_content for d in found) in prompt
    repeated = 2 if name == "twice" else 1
    assert message.response_metadata["kvpacket"]["hits"] == [d.id for d in found] * repeated


def test_order_separator_and_document_prompt_are_those_asked_for(chat: ChatKVPacket, store: DocumentStore):
    found, seen = documents(store), Seen()
    chain = create_kvpacket_documents_chain(
        chat,
        best_last=True,
        document_separator="\n---\n",
        document_prompt=PromptTemplate.from_template("<{part}>{page_content}</{part}>"),
    )
    chain.invoke({"context": found, "question": "How long?"}, config={"callbacks": [seen]})
    (prompt,), (message,) = seen.prompts.values(), seen.messages.values()
    parts = [f"<{d.metadata['part']}>{d.page_content}</{d.metadata['part']}>" for d in found[::-1]]
    assert "\n---\n".join(parts) in prompt
    assert message.response_metadata["kvpacket"]["hits"] == [d.id for d in found[::-1]]


def test_without_documents_the_chain_says_so_and_does_not_ask_the_model(chat: ChatKVPacket, store: DocumentStore):
    seen = Seen()
    nothing = KVPacketRetriever(store=store, filter={"part": {"$in": ["nothing"]}})
    chain = create_kvpacket_retrieval_chain(nothing, create_kvpacket_documents_chain(chat))
    result = chain.invoke({"input": "Why?"}, config={"callbacks": [seen]})
    assert (result["answer"], result["context"], seen.messages) == ("No document fits the question.", [], {})
    told = create_kvpacket_documents_chain(chat, nothing_found="Nichts.")
    assert told.invoke({"context": [], "question": "Why?"}) == "Nichts."
    asked = create_kvpacket_documents_chain(chat, nothing_found=None)
    assert asked.invoke({"context": [], "question": "Why?"}, config={"callbacks": [seen]}) != "Nichts."
    assert len(seen.messages) == 1


def test_documents_of_no_store_are_text_and_counted(chat: ChatKVPacket):
    seen = Seen()
    chain = create_kvpacket_documents_chain(chat)
    strange = [Document("A text of nowhere, with braces {question} and {{ more }}."), Document("")]
    chain.invoke({"context": strange, "question": "What?"}, config={"callbacks": [seen]})
    chain.invoke({"context": [], "question": "What?"})
    (prompt,), (message,) = seen.prompts.values(), seen.messages.values()
    assert "with braces {question} and {{ more }}." in prompt
    assert message.response_metadata["kvpacket"]["missed"] == 2


def test_a_prompt_without_a_place_for_documents_is_refused(chat: ChatKVPacket):
    with pytest.raises(InputError, match="variable 'context'"):
        create_kvpacket_documents_chain(chat, ChatPromptTemplate.from_template("{question}"))
    with pytest.raises(InputError, match="needs 'input' or 'question'"):
        create_kvpacket_retrieval_chain(
            KVPacketRetriever(store=chat.store), create_kvpacket_documents_chain(chat)
        ).invoke({"query": "a"})


async def test_a_retrieval_chain_gives_documents_and_answer_and_takes_any_runnable(chat: ChatKVPacket, store):
    documents_chain = create_kvpacket_documents_chain(chat)
    chain = create_kvpacket_retrieval_chain(KVPacketRetriever(store=store, k=2), documents_chain)
    result = chain.invoke({"input": "battery", "chat_history": [HumanMessage("Hi."), AIMessage("Hello.")]})
    assert [d.id for d in result["context"]] == [d.id for d in documents(store)]
    assert set(result) == {"input", "context", "answer", "chat_history"}
    assert await chain.ainvoke({"input": "battery"}) == chain.invoke({"input": "battery"})
    pieces = [step["answer"] for step in chain.stream({"input": "battery"}) if "answer" in step]
    assert len(pieces) >= 2
    bound = KVPacketRetriever(store=store, k=2).with_config(tags=["mine"]).bind(k=1)
    assert len(create_kvpacket_retrieval_chain(bound, documents_chain).invoke({"input": "battery"})["context"]) == 1
    own = create_kvpacket_retrieval_chain(RunnableLambda(lambda inputs: documents(store, 1)), documents_chain)
    assert len(own.invoke({"input": "x"})["context"]) == 1


def test_the_chains_of_langchain_itself_work_with_the_chat_model(chat: ChatKVPacket, store: DocumentStore):
    from langchain_classic.chains import create_retrieval_chain
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain

    seen = Seen()
    prompt = ChatPromptTemplate([("system", "Use this:\n\n{context}"), ("human", "{input}")])
    chain = create_retrieval_chain(KVPacketRetriever(store=store, k=3), create_stuff_documents_chain(chat, prompt))
    chain.invoke({"input": "battery"}, config={"callbacks": [seen]})
    assert seen.share(store, {d.page_content for d in seen.retrieved[-1]}) >= 0.9


def test_an_agent_without_tools_and_a_dynamic_prompt_are_answered_from_packets(
    chat: ChatKVPacket, store: DocumentStore
):
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelRequest, dynamic_prompt

    @dynamic_prompt
    def with_context(request: ModelRequest) -> str:
        found = documents(store)
        return "Use this:\n\n" + "\n\n".join(d.page_content for d in found)

    agent = create_agent(chat, tools=[], middleware=[with_context])
    result = agent.invoke({"messages": [("user", "How long does the battery last?")]})
    told = result["messages"][-1].response_metadata["kvpacket"]
    assert told["hits"] == [d.id for d in documents(store)]
    follow_up = agent.invoke({"messages": [*result["messages"], ("user", "And why?")]})
    assert follow_up["messages"][-1].response_metadata["kvpacket"]["hits"] == told["hits"]
    assert follow_up["messages"][-1].response_metadata["kvpacket"]["packets_built"] == 0
