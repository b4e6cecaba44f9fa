"""`KVPacketLLM`: a local model that finds stored chunks in its prompt and uses their packets."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
)
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM

from kvpacket_rag import AnswerStream, LanguageModelComponent, Reply, Turn, steps_in_thread
from kvpacket_rag.errors import InputError
from llama_index_kvpacket.events import KVPacketAnswerEvent, KVPacketLoadEvent

__all__ = ["KVPacketLLM", "cost", "to_turns"]

dispatcher = get_dispatcher(__name__)

ROLES = {
    MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant", MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant",
}  # fmt: skip


class KVPacketLLM(LanguageModelComponent, CustomLLM):
    """A local model that finds the chunks of a store in its prompt and uses their packets.

    Prompts are put into the model's own chat template. A completion is the answer to one user message.
    """

    max_tokens: int = 256
    """Maximum answer tokens."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component."""
        return "KVPacketLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex needs to know about the model. Reading it loads the model."""
        model = self.conversation.model
        return LLMMetadata(
            context_window=model.max_positions, num_output=self.max_tokens, is_chat_model=True, model_name=model.name
        )

    def to_payload(self) -> dict[str, Any]:
        """Return what LlamaIndex's callbacks report about the model. It runs in the event loop, so it loads nothing."""
        return {"class_name": self.class_name(), "method": self.method, **self.own_settings}

    async def apredict(self, *args: Any, **kwargs: Any) -> str:
        """Predict as any LlamaIndex model does. The model is loaded outside the event loop."""
        await asyncio.to_thread(lambda: self.conversation)
        return await super().apredict(*args, **kwargs)

    async def astream(self, *args: Any, **kwargs: Any) -> Any:
        """Stream as any LlamaIndex model does. The model is loaded outside the event loop."""
        await asyncio.to_thread(lambda: self.conversation)
        return await super().astream(*args, **kwargs)

    def converse(self, turns: Sequence[Turn], **settings: Any) -> AnswerStream[Reply]:
        """Stream the next turn. Raises `InputError` for an unknown setting."""
        method = settings.pop("method", None) or self.method
        stream = self.conversation.stream(turns, method=method, config=self.generation(settings))
        reply = stream.answer
        dispatcher.event(
            KVPacketLoadEvent(
                chunks=[chunk.id for chunk in reply.chunks], missed=reply.usage.missed, built=reply.usage.packets_built,
                seconds=reply.timings.search + reply.timings.load,
            )
        )  # fmt: skip
        return stream

    def pieces(self, stream: AnswerStream[Reply]) -> Generator[str, None, None]:
        """Yield the pieces of an answer, and emit an event when it ends or is stopped."""
        try:
            with stream:
                yield from stream
        finally:
            reply = stream.answer
            dispatcher.event(KVPacketAnswerEvent(text=reply.text, cost=cost(reply)))

    def _chat(self, messages: Sequence[ChatMessage], settings: dict[str, Any]) -> Generator[ChatResponse, None, None]:
        stream, text = self.converse(to_turns(messages), **settings), ""

        def response(delta: str) -> ChatResponse:
            message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
            told = {"kvpacket": cost(stream.answer)}
            return ChatResponse(message=message, delta=delta, raw=told, additional_kwargs=told)

        for piece in self.pieces(stream):
            text += piece
            yield response(piece)
        yield response("")

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer messages. Raises `InputError` for tool messages and content other than text."""
        *_, last = self._chat(messages, kwargs)
        return last

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer messages piece by piece."""
        return self._chat(messages, kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer messages without blocking the event loop."""
        found = [response async for response in steps_in_thread(self._chat(messages, kwargs))]
        return found[-1]

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Answer messages piece by piece, without blocking the event loop."""
        return steps_in_thread(self._chat(messages, kwargs))

    def _complete(self, prompt: str, settings: dict[str, Any]) -> Generator[CompletionResponse, None, None]:
        for step in self._chat([ChatMessage(role=MessageRole.USER, content=prompt)], settings):
            yield CompletionResponse(
                text=step.message.content or "",
                delta=step.delta,
                raw=step.raw,
                additional_kwargs=step.additional_kwargs,
            )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt as one user message. formatted: no effect; the model's own chat template always applies."""
        *_, last = self._complete(prompt, kwargs)
        return last

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Answer a prompt piece by piece."""
        return self._complete(prompt, kwargs)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt without blocking the event loop."""
        found = [response async for response in steps_in_thread(self._complete(prompt, kwargs))]
        return found[-1]

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Answer a prompt piece by piece, without blocking the event loop."""
        return steps_in_thread(self._complete(prompt, kwargs))

    async def converse_in_thread(self, turns: Sequence[Turn]) -> AnswerStream[Reply]:
        """Prefill a prompt and stream the next turn, without blocking the event loop."""
        return await asyncio.to_thread(self.converse, turns)


def cost(reply: Reply) -> dict[str, Any]:
    """Return the cost of an answer as JSON values."""
    return {
        "hits": [chunk.id for chunk in reply.chunks],
        "method": reply.method,
        **asdict(reply.usage),
        "timings": asdict(reply.timings),
    }


def to_turns(messages: Sequence[ChatMessage]) -> list[Turn]:
    """Return messages as turns. Raises `InputError` for tool roles, and for content other than text."""
    turns = []
    for message in messages:
        if message.role not in ROLES:
            raise InputError(f"Messages must have the role system, user or assistant; got {message.role.value!r}.")
        for block in message.blocks:
            if not isinstance(block, TextBlock):
                raise InputError(f"Only text is supported; got a block of type {block.block_type!r}.")
        turns.append(Turn(ROLES[message.role], (message.content or "",)))
    return turns
