"""`ChatKVPacket`: a chat model that finds stored chunks in its prompt and uses their packets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator
from dataclasses import asdict
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel, agenerate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from kvpacket_rag import (
    DEFAULT_MODEL,
    AnswerStream,
    DocumentStore,
    GenerationConfig,
    LanguageModelComponent,
    Reply,
    steps_in_thread,
)
from kvpacket_rag.errors import InputError
from langchain_kvpacket.messages import to_turns

__all__ = ["ChatKVPacket"]

IGNORED = ("ls_structured_output_format", "stream_usage", "strict")
"""Call arguments of LangChain that have no meaning for a local model."""


class ChatKVPacket(LanguageModelComponent, BaseChatModel):
    """A local model that finds the chunks of a store in its prompt and uses their packets.

    All other text of the prompt is computed. Answers report what came from packets in
    `usage_metadata["input_token_details"]["cache_read"]` and `response_metadata["kvpacket"]`.
    """

    @property
    def _llm_type(self) -> str:
        return "kvpacket"

    @property
    def model_name(self) -> str:
        """Name of the model, as given or as recorded in the store."""
        if self.model is not None:
            return self.model if isinstance(self.model, str) else self.model.name
        store = self.opened_store
        return DEFAULT_MODEL if store is None else store.settings.model

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Settings and names for tracing. Reading them loads nothing."""
        store = self.store.location if isinstance(self.store, DocumentStore) else self.store
        about = {"model": self.model_name, "store": None if store is None else str(store), "method": self.method}
        return {**about, **self.own_settings}

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Return all that an answer depends on besides its messages, as a part of the key of LangChain's cache."""
        talk = self.conversation
        identity = {"weights": talk.model.weights_hash, "adapter": talk.model.adapter.digest}
        if talk.store is not None:
            identity |= {"store": talk.store.location, "namespace": talk.store.namespace, **asdict(talk.store.settings)}
        return f"{super()._get_llm_string(stop=stop, **kwargs)}---{json.dumps(identity, sort_keys=True)}"

    def _config(self, stop: list[str] | None, settings: dict[str, Any]) -> GenerationConfig:
        """Return the settings of one call."""
        if settings.get("tools"):
            raise InputError("ChatKVPacket does not support tools. Leave them out.")
        if settings.get("model", self.model_name) != self.model_name:
            raise InputError(
                f"This ChatKVPacket runs {self.model_name}. Create another ChatKVPacket for {settings['model']!r}."
            )
        asked = {name: value for name, value in settings.items() if name not in ("method", "model", "tools", *IGNORED)}
        return self.generation({**asked, "stop": stop})

    def _start(
        self, messages: list[BaseMessage], config: GenerationConfig, settings: dict[str, Any]
    ) -> AnswerStream[Reply]:
        """Prefill the prompt and return the stream of the answer."""
        method = settings.get("method") or self.method
        return self.conversation.stream(to_turns(messages), method=method, config=config)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        config = self._config(stop, kwargs)
        with self._start(messages, config, kwargs) as stream:
            text = "".join(stream)
            reply = stream.answer
        message = AIMessage(text, usage_metadata=_usage(reply), response_metadata=self._metadata(reply, config))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> Generator[ChatGenerationChunk, None, None]:  # fmt: skip
        config = self._config(stop, kwargs)
        with self._start(messages, config, kwargs) as stream:
            for text in stream:
                yield ChatGenerationChunk(message=AIMessageChunk(content=text))
            reply = stream.answer
        last = AIMessageChunk(
            content="",
            usage_metadata=_usage(reply),
            response_metadata=self._metadata(reply, config),
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        # This also runs step by step, so that a cancelled call stops.
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:  # fmt: skip
        async for chunk in steps_in_thread(self._stream(messages, stop, None, **kwargs)):
            yield chunk

    def _metadata(self, reply: Reply, config: GenerationConfig) -> dict[str, Any]:
        usage = reply.usage
        return {
            "model_name": self.model_name,
            "model_provider": "kvpacket",
            "finish_reason": "length" if usage.answer_tokens >= config.max_new_tokens else "stop",
            "kvpacket": {
                "hits": [chunk.id for chunk in reply.chunks],
                "missed": usage.missed,
                "packet_tokens": usage.packet_tokens,
                "prefix_tokens": usage.prefix_tokens,
                "computed_tokens": usage.computed_tokens,
                "packets_built": usage.packets_built,
                "healed": usage.healed,
                "method": reply.method,
                "timings": asdict(reply.timings),
            },
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """Return names for tracing."""
        name = kwargs.get("model")
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "kvpacket"
        params["ls_model_name"] = name if isinstance(name, str) else self.model_name
        return params

    def get_token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, from the model's own tokenizer."""
        return list(self.conversation.model.text.plain(text))


def _usage(reply: Reply) -> UsageMetadata:
    usage = reply.usage
    prompt = usage.reused + usage.computed_tokens
    return UsageMetadata(
        input_tokens=prompt,
        output_tokens=usage.answer_tokens,
        total_tokens=prompt + usage.answer_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.packet_tokens),
    )
