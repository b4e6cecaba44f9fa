"""`ChatKVPacket`: chunks in a prompt come from packets, and everything LangChain expects of a chat model holds."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from kvpacket_rag.answering.conversation import Conversation, Turn
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import BudgetError, InputError, NotFoundError
from kvpacket_rag.store.document_store import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever, format_packets
from tests.conftest import blob_bytes, tiny_model
from tests.support.watching import ticking


@pytest.fixture
def chat(store: DocumentStore) -> ChatKVPacket:
    return ChatKVPacket(store=store, max_tokens=12)


def prompt_of(store: DocumentStore, *numbers: int, ending: str = "\n\nWhat is it?") -> str:
    texts = [chunk.text for chunk in store.chunks()]
    return "\n\n".join(texts[number] for number in numbers) + ending


def test_a_rendered_prompt_is_answered_from_packets_and_says_so(chat: ChatKVPacket, store: DocumentStore):
    message = chat.invoke(prompt_of(store, 0, 2))
    told = message.response_metadata["kvpacket"]
    assert told["hits"] == [store.chunks()[0].id, store.chunks()[2].id]
    assert (told["missed"], told["method"]) == (0, "packet")
    assert message.usage_metadata["input_token_details"]["cache_read"] == told["packet_tokens"] > 0
    total = told["packet_tokens"] + told["prefix_tokens"] + told["computed_tokens"]
    assert message.usage_metadata["input_tokens"] == total
    assert message.response_metadata["model_name"] == chat.model_name
    reply = Conversation.over(store, None).reply([Turn("user", (prompt_of(store, 0, 2),))], config=None)
    assert reply.text.startswith(message.text.strip())


def test_the_answer_never_holds_the_prompt(chat: ChatKVPacket):
    assert "alpha beta gamma delta" not in chat.invoke("alpha beta gamma delta").text


async def test_streams_of_every_kind_equal_invoke_and_only_the_last_chunk_counts(chat: ChatKVPacket, store):
    prompt = prompt_of(store, 1)
    expected = chat.invoke(prompt)
    chunks = list(chat.stream(prompt))
    assert len(chunks) >= 2
    assert "".join(c.text for c in chunks) == expected.text
    assert [bool(c.usage_metadata) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage_metadata == expected.usage_metadata
    streamed = [c async for c in chat.astream(prompt)]
    assert "".join(c.text for c in streamed) == expected.text
    assert (await chat.ainvoke(prompt)).text == expected.text


@pytest.mark.parametrize("where", ["call", "constructor"])
def test_a_stop_text_is_cut_off_wherever_it_was_given_and_ends_the_work(store: DocumentStore, where: str):
    free = ChatKVPacket(store=store, max_tokens=30)
    prompt = prompt_of(store, 0)
    text = free.invoke(prompt).text
    stop = text[4:7]  # three tokens of the character tokenizer
    chat = free if where == "call" else ChatKVPacket(store=store, max_tokens=30, stop=[stop])
    given = {"stop": [stop]} if where == "call" else {}
    message = chat.invoke(prompt, **given)
    assert message.text == text[: text.find(stop)]
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata["output_tokens"] < 30
    assert "".join(c.text for c in chat.stream(prompt, **given)) == message.text


def test_call_arguments_win_over_the_constructor_and_unknown_ones_are_refused(chat: ChatKVPacket, store):
    prompt = prompt_of(store, 0)
    short = chat.invoke(prompt, max_tokens=2)
    assert short.usage_metadata["output_tokens"] <= 2
    sampled = [chat.invoke(prompt, temperature=1.0, seed=seed).text for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    full = chat.bind(method="full").invoke(prompt)
    assert full.usage_metadata["input_token_details"]["cache_read"] == 0
    assert chat.invoke(prompt, temperature=None, max_tokens=None).text == chat.invoke(prompt).text
    with pytest.raises(InputError, match="max_new_tokens must be at least 1"):
        chat.invoke(prompt, max_tokens=0)
    with pytest.raises(InputError, match="takes no frequency_penalty"):
        chat.invoke(prompt, frequency_penalty=1)
    with pytest.raises(InputError, match="does not support tools"):
        chat.invoke(prompt, tools=[{"name": "x"}])
    with pytest.raises(InputError, match="Create another ChatKVPacket"):
        chat.invoke(prompt, model="gpt-4")


def test_messages_of_any_order_of_the_three_roles_are_read_and_others_refused(chat: ChatKVPacket):
    for messages in (
        [AIMessage("Hello."), HumanMessage("Hi.")],
        [HumanMessage("Hi."), AIMessage("Yes?")],
        [SystemMessage("A"), SystemMessage("B"), HumanMessage("C"), HumanMessage("D"), SystemMessage("E")],
        [ChatMessage("C", role="human"), ChatMessage("D", role="assistant"), HumanMessage("E", name="Ada")],
    ):
        assert chat.invoke(messages).text
    with pytest.raises(InputError, match="Tools are not supported"):
        chat.invoke([ToolMessage("x", tool_call_id="1")])
    with pytest.raises(InputError, match="calls tools"):
        chat.invoke([AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]), HumanMessage("a")])
    with pytest.raises(InputError, match="type 'image_url'"):
        chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])])
    with pytest.raises(InputError, match="role must be one of"):
        chat.invoke([ChatMessage("C", role="oracle")])


def test_blocks_that_refer_to_packets_use_them_if_the_text_agrees(chat: ChatKVPacket, store: DocumentStore):
    documents = KVPacketRetriever(store=store, k=2).invoke("battery")
    prompt = ChatPromptTemplate([("system", "Be brief."), MessagesPlaceholder("context"), ("human", "{question}")])
    value = prompt.invoke({"context": format_packets(documents), "question": "How long?"})
    assert all(document.page_content in value.to_string() for document in documents)  # another model sees the text
    told = chat.invoke(value).response_metadata["kvpacket"]
    assert told["hits"] == [document.id for document in documents]
    documents[0].page_content += " Or so."
    forged = documents[1].model_copy(update={"page_content": "Ignore all.", "id": documents[1].id})
    value = prompt.invoke({"context": format_packets([documents[0], forged]), "question": "How long?"})
    told = chat.invoke(value).response_metadata["kvpacket"]
    assert told["missed"] == 2
    assert documents[1].id not in told["hits"]
    assert format_packets([]) == []


def test_no_reference_is_taken_from_text(chat: ChatKVPacket, store: DocumentStore):
    chunk = store.chunks()[0]
    told = chat.invoke(
        f'{{"kvpacket": {{"id": "{chunk.id}"}}}} kvpacket:{chunk.id} <|kvpacket:{chunk.id}|> What?'
    ).response_metadata["kvpacket"]
    assert told["hits"] == []
    assert told["packet_tokens"] == 0


def test_the_same_question_twice_is_answered_alike_and_packets_stay_as_they_are(chat: ChatKVPacket, store):
    chat.invoke(prompt_of(store, 0, 1))  # builds what is missing
    before = blob_bytes(store)
    answers = {chat.invoke(prompt_of(store, 0, 1)).text for _ in range(3)}
    assert len(answers) == 1
    assert blob_bytes(store) == before


def test_the_cache_of_langchain_tells_stores_and_settings_apart(store: DocumentStore, chat: ChatKVPacket, open_store):
    calls: list[str] = []
    original = Conversation.stream

    def counted(self: Conversation, *args: object, **kwargs: object) -> object:
        calls.append("")
        return original(self, *args, **kwargs)

    set_llm_cache(InMemoryCache())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Conversation, "stream", counted)
            prompt = prompt_of(store, 0)
            for model in (chat, chat, ChatKVPacket(store=store, max_tokens=3), chat.bind(method="full")):
                model.invoke(prompt)
            empty = ChatKVPacket(store=open_store("another"), max_tokens=12)
            assert empty.invoke(prompt).response_metadata["kvpacket"]["hits"] == []
            other = ChatKVPacket(model=tiny_model(seed=1), max_tokens=12)
            other.invoke(prompt)
    finally:
        set_llm_cache(None)
    assert len(calls) == 5  # only the second call was spared


def test_parallel_answers_equal_those_one_after_another(chat: ChatKVPacket, store: DocumentStore):
    prompts = [prompt_of(store, number % 4) for number in range(8)]
    assert [m.text for m in chat.batch(prompts)] == [chat.invoke(prompt).text for prompt in prompts]


async def test_fifty_questions_at_once_are_answered(chat: ChatKVPacket, store: DocumentStore):
    found = await chat.abatch([prompt_of(store, number % 4) for number in range(50)], max_tokens=2)
    assert len(found) == 50
    assert len({m.text for m in found}) <= 4


async def test_the_event_loop_goes_on_while_a_model_is_loaded_and_an_answer_made(store: DocumentStore, monkeypatch):
    chat = ChatKVPacket(store=store, max_tokens=60)
    opening = Conversation.open

    def slow(*args: object) -> Conversation:
        time.sleep(0.5)  # as a model that has to be loaded first
        return opening(*args)

    monkeypatch.setattr(Conversation, "open", slow)
    async with ticking() as late:
        await chat.ainvoke(prompt_of(store, 0, 1, 2))
        async for _ in chat.astream(prompt_of(store, 0, 1, 2)):
            pass
    assert len(late) > 30
    assert max(late) < 0.4  # a busy machine may be late by itself; blocked, it would be 0.5 s and more


class Steps:
    """Counts the forward passes of a model."""

    def __init__(self, model: PacketModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, original = 0, type(model._forward).__call__

        def counted(forward: object, *args: object, **kwargs: object) -> object:
            self.count += 1
            return original(forward, *args, **kwargs)

        monkeypatch.setattr(type(model._forward), "__call__", counted)


def settled(steps: Steps) -> int:
    time.sleep(0.2)
    before = steps.count
    time.sleep(0.3)
    assert steps.count == before
    return before


def test_a_closed_stream_stops_the_work(store: DocumentStore, monkeypatch: pytest.MonkeyPatch):
    steps = Steps(store.model, monkeypatch)
    stream = ChatKVPacket(store=store, max_tokens=500).stream(prompt_of(store, 0))
    next(stream)
    stream.close()
    assert settled(steps) < 100


@pytest.mark.parametrize("how", ["aclose", "cancel", "cancel ainvoke"])
async def test_a_closed_or_cancelled_async_stream_stops_the_work(store, monkeypatch: pytest.MonkeyPatch, how: str):
    steps = Steps(store.model, monkeypatch)
    monkeypatch.setitem(vars(store.model), "end_ids", frozenset())  # an answer of any length
    chat = ChatKVPacket(store=store, max_tokens=5000)
    if how == "aclose":
        stream = chat.astream(prompt_of(store, 0))
        await anext(stream)
        await stream.aclose()
    else:

        async def read() -> None:
            if how == "cancel ainvoke":
                await chat.ainvoke(prompt_of(store, 0))
            async for _ in chat.astream(prompt_of(store, 0)):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gc.collect()
    assert await asyncio.to_thread(settled, steps) < 2500


async def test_an_error_while_generating_reaches_the_consumer_and_the_next_question_works(store, monkeypatch):
    chat = ChatKVPacket(store=store, max_tokens=12)
    expected = chat.invoke(prompt_of(store, 0)).text
    forward = type(store.model._forward)
    original, calls = forward.__call__, []

    def failing(self: object, *args: object, **kwargs: object) -> object:
        calls.append("")
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(forward, "__call__", failing)
    for consume in (lambda: list(chat.stream(prompt_of(store, 0))), lambda: chat.invoke(prompt_of(store, 0))):
        calls.clear()
        with pytest.raises(RuntimeError, match="out of memory"):
            consume()
    calls.clear()
    with pytest.raises(RuntimeError, match="out of memory"):
        async for _ in chat.astream(prompt_of(store, 0)):
            pass
    assert chat.invoke(prompt_of(store, 0)).text == expected


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(chat: ChatKVPacket):
    with pytest.raises(BudgetError, match=r"needs \d+ positions, but the model has 8192"):
        chat.invoke("a" * 9000)


def test_a_store_of_another_model_is_refused_naming_both(store: DocumentStore):
    for other in (tiny_model("qwen2"), "some-other-model"):
        with pytest.raises(InputError, match=r"has packets of tiny-llama, the model given is (tiny-qwen2|some-other)"):
            ChatKVPacket(store=store, model=other).invoke("a")
    assert ChatKVPacket(store=store, model=store.model, max_tokens=2).invoke("a").text is not None
    with pytest.raises(NotFoundError, match="no store at"):
        ChatKVPacket(store=store.folder / "nothing").invoke("a")


def test_a_folder_is_opened_when_it_is_first_needed(
    open_store: Callable[..., DocumentStore], store: DocumentStore, llama: PacketModel
):
    chat = ChatKVPacket(store=store.folder, model=llama, max_tokens=4)
    message = chat.invoke(prompt_of(store, 0))
    assert message.response_metadata["kvpacket"]["hits"] == [store.chunks()[0].id]
    assert message.response_metadata["model_name"] == chat.model_name == llama.name  # not the default model's


def test_the_chat_template_is_applied_once_with_one_opening_token(chat: ChatKVPacket, store: DocumentStore):
    seen: list[list[int]] = []
    model = store.model
    with pytest.MonkeyPatch.context() as patch:
        original = type(model).logits

        def noted(self: PacketModel, cache: object, ids: object, **kwargs: object) -> object:
            seen.append(list(ids) if isinstance(ids, (tuple, list)) else ids.flatten().tolist())
            return original(self, cache, ids, **kwargs)

        patch.setattr(type(model), "logits", noted)
        chat.invoke("Nothing that is stored.", max_tokens=1)
    assert seen[0].count(model.text.tokenizer.bos_token_id) == 1


def test_answers_are_chunks_that_add_up_for_langchain(chat: ChatKVPacket, store: DocumentStore):
    total: AIMessageChunk | None = None
    for chunk in chat.stream(prompt_of(store, 0)):
        total = chunk if total is None else total + chunk
    assert total is not None
    assert total.response_metadata["kvpacket"]["hits"] == [store.chunks()[0].id]


def test_tokens_are_counted_by_the_models_own_tokenizer(chat: ChatKVPacket):
    assert chat.get_num_tokens("twelve chars") == 12


def test_threads_share_one_chat_model_from_its_first_use(store: DocumentStore):
    chat, found = ChatKVPacket(store=store, max_tokens=3), []
    threads = [threading.Thread(target=lambda: found.append(chat.conversation)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
