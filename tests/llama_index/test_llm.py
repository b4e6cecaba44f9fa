"""`KVPacketLLM`: chunks in a prompt come from packets; chats, completions, streams and async agree."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import LLM, ChatMessage, ImageBlock, MessageRole
from llama_index.core.memory import ChatMemoryBuffer

from kvpacket_rag.answering.conversation import Conversation
from kvpacket_rag.errors import BudgetError, InputError
from kvpacket_rag.store.document_store import DocumentStore
from llama_index_kvpacket import KVPacketAnswerEvent, KVPacketLLM, KVPacketLoadEvent, KVPacketRetriever
from tests.conftest import tiny_model
from tests.support.watching import ticking


def prompt_of(store: DocumentStore, *numbers: int) -> str:
    texts = [chunk.text for chunk in store.chunks()]
    return "\n\n".join(texts[number] for number in numbers) + "\n\nWhat is it?"


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]


def test_it_is_an_llm_and_says_what_it_is(llm: KVPacketLLM):
    assert LLM in KVPacketLLM.__mro__
    assert (llm.metadata.context_window, llm.metadata.num_output, llm.metadata.is_chat_model) == (8192, 10, True)
    assert llm.metadata.model_name == "tiny-llama"


async def test_completions_chats_streams_and_async_give_one_answer_from_packets(llm: KVPacketLLM, store: DocumentStore):
    prompt = prompt_of(store, 0, 2)
    done = llm.complete(prompt)
    told = done.additional_kwargs["kvpacket"]
    assert told["hits"] == [store.chunks()[0].id, store.chunks()[2].id]
    assert told["packet_tokens"] > told["computed_tokens"]
    assert prompt not in done.text
    assert (await llm.acomplete(prompt)).text == done.text
    assert llm.chat(user(prompt)).message.content == done.text
    assert (await llm.achat(user(prompt))).message.content == done.text
    streams = [
        list(llm.stream_complete(prompt)),
        [step async for step in await llm.astream_complete(prompt)],
        list(llm.stream_chat(user(prompt))),
        [step async for step in await llm.astream_chat(user(prompt))],
    ]
    for steps in streams:
        assert len(steps) >= 3
        assert "".join(step.delta for step in steps) == done.text
        last = steps[-1]
        assert (last.text if hasattr(last, "text") else last.message.content) == done.text
        assert last.additional_kwargs["kvpacket"]["answer_tokens"] == told["answer_tokens"]


def test_settings_of_a_call_win_and_unknown_ones_are_refused(llm: KVPacketLLM, store: DocumentStore):
    text = llm.complete(prompt_of(store, 0)).text
    assert llm.complete(prompt_of(store, 0), max_tokens=2).text == text[:2]
    stop = text[3:5]
    assert llm.complete(prompt_of(store, 0), stop=[stop]).text == text[: text.find(stop)]
    assert (
        KVPacketLLM(store=store, max_tokens=10, stop=[stop]).complete(prompt_of(store, 0)).text
        == text[: text.find(stop)]
    )
    full = llm.complete(prompt_of(store, 0), method="full").additional_kwargs["kvpacket"]
    assert (full["packet_tokens"], full["method"]) == (0, "full")
    with pytest.raises(InputError, match="takes no magic"):
        llm.complete("a", magic=1)
    with pytest.raises(BudgetError, match="8192"):
        llm.complete("a" * 9000)


def test_messages_other_than_text_of_three_roles_are_refused(llm: KVPacketLLM):
    with pytest.raises(InputError, match="got 'tool'"):
        llm.chat([ChatMessage(role=MessageRole.TOOL, content="x")])
    with pytest.raises(InputError, match="type 'image'"):
        llm.chat([ChatMessage(role=MessageRole.USER, blocks=[ImageBlock(url="https://example.org/x.png")])])
    assert llm.chat([ChatMessage(role=MessageRole.ASSISTANT, content="Hello."), *user("Hi.")]).message.content
    with pytest.raises(InputError, match=r"has packets of tiny-llama, the model given is tiny-qwen2"):
        KVPacketLLM(store=llm.store, model=tiny_model("qwen2")).complete("a")


async def test_ten_questions_at_once_equal_ten_in_a_row_and_the_loop_goes_on(llm, store: DocumentStore, monkeypatch):
    prompts = [prompt_of(store, n % 4) for n in range(10)]
    expected = [llm.complete(prompt).text for prompt in prompts]
    opening = Conversation.open

    def slow(*args: object) -> Conversation:
        time.sleep(0.5)  # as a model that has to be loaded first
        return opening(*args)

    monkeypatch.setattr(Conversation, "open", slow)
    llm = KVPacketLLM(store=store, max_tokens=10)
    async with ticking() as late:
        found = await asyncio.gather(*(llm.acomplete(prompt) for prompt in prompts))
        await llm.achat(user(prompts[0]))
        assert await llm.apredict(PromptTemplate("{text}"), text=prompts[0]) == expected[0]
    assert [response.text for response in found] == expected
    assert len(late) > 30
    assert max(late) < 0.4  # a busy machine may be late by itself; blocked, it would be 0.5 s and more


async def test_a_cancelled_stream_stops_and_an_error_reaches_the_reader(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(vars(store.model), "end_ids", frozenset())
    llm = KVPacketLLM(store=store, max_tokens=5000)
    forward, calls = type(store.model._forward), []
    original = forward.__call__

    def counted(self: object, *args: object, **kwargs: object) -> object:
        calls.append("")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(forward, "__call__", counted)
    stream = await llm.astream_complete(prompt_of(store, 0))
    await anext(stream)
    await stream.aclose()
    gc.collect()
    time.sleep(0.2)
    count = len(calls)
    time.sleep(0.2)
    assert len(calls) == count

    def failing(self: object, *args: object, **kwargs: object) -> object:
        if len(calls) > count + 3:
            raise RuntimeError("out of memory")
        return counted(self, *args, **kwargs)

    monkeypatch.setattr(forward, "__call__", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        async for _ in await llm.astream_complete(prompt_of(store, 0)):
            pass


class Heard(BaseEventHandler):
    """Collects events of packets."""

    events: list[object] = []  # noqa: RUF012 - pydantic copies it

    def handle(self, event: object, **_: object) -> None:
        if isinstance(event, KVPacketLoadEvent | KVPacketAnswerEvent):
            self.events.append(event)


def test_instrumentation_hears_of_packets_and_answers(llm: KVPacketLLM, store: DocumentStore):
    heard, root = Heard(), get_dispatcher()
    root.add_event_handler(heard)
    try:
        done = llm.complete(prompt_of(store, 1))
    finally:
        root.event_handlers.remove(heard)
    load, answer = heard.events
    assert load.chunks == done.additional_kwargs["kvpacket"]["hits"]
    assert (load.missed, load.class_name()) == (0, "KVPacketLoadEvent")
    assert answer.text == done.text.strip()
    assert answer.cost["packet_tokens"] > 0


def test_chat_engines_take_context_from_packets_and_follow_ups_too(llm: KVPacketLLM, store: DocumentStore):
    retriever = KVPacketRetriever(store, similarity_top_k=2)
    memory = ChatMemoryBuffer.from_defaults(token_limit=4000, tokenizer_fn=llm.conversation.model.text.plain)
    heard, root = Heard(), get_dispatcher()
    for engine in (
        ContextChatEngine.from_defaults(retriever=retriever, llm=llm, memory=memory),
        CondensePlusContextChatEngine.from_defaults(retriever=retriever, llm=llm, memory=memory.model_copy(deep=True)),
    ):
        heard.events.clear()
        root.add_event_handler(heard)
        try:
            engine.chat("How long does the battery last?")
            engine.chat("And how is it charged?")
        finally:
            root.event_handlers.remove(heard)
        loads = [event for event in heard.events if isinstance(event, KVPacketLoadEvent)]
        assert sum(len(event.chunks) == 2 for event in loads) >= 2
        assert loads[-1].missed == 0
