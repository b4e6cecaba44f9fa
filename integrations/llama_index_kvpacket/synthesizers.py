"""`KVPacketSynthesizer`: a response synthesizer that takes each node from its packet."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer, QueryTextType
from llama_index.core.schema import NodeWithScore, QueryBundle

from kvpacket_rag import SEPARATOR, AnswerStream, Passage, PromptStyle, Reply, Turn, splice, steps_in_thread
from kvpacket_rag.errors import InputError
from llama_index_kvpacket.llms import KVPacketLLM, cost, to_turns
from llama_index_kvpacket.nodes import content

__all__ = ["KVPacketSynthesizer"]

dispatcher = get_dispatcher(__name__)


class KVPacketSynthesizer(BaseSynthesizer):
    """Puts all nodes into one prompt, in their order, each from the packet of the text that the model sees.

    If a postprocessor rewrote a node, so that the store lacks its text, the node is computed and counted.
    `response.metadata["kvpacket"]` reports the cost of the answer. A stream has it once it has ended.
    """

    def __init__(
        self, llm: KVPacketLLM, *, streaming: bool = False, text_qa_template: BasePromptTemplate | None = None,
        best_last: bool = False, empty_response: str | None = None, callback_manager: CallbackManager | None = None,
    ) -> None:  # fmt: skip
        """text_qa_template: has `context_str` and `query_str`; default the wording of the store's own answers.

        best_last: place nodes in reverse order, so that the best is next to the question, where small models use it
        best.
        """
        window, room = llm.metadata.context_window, llm.metadata.num_output

        def count(text: str) -> list[int]:
            return list(llm.conversation.model.text.plain(text))

        # Everything is passed explicitly, so that nothing is looked up in the global Settings.
        super().__init__(
            llm=llm, callback_manager=callback_manager or CallbackManager(), streaming=streaming,
            prompt_helper=PromptHelper(window, room, tokenizer=count),
            chat_prompt_helper=ChatPromptHelper(window, room, tokenizer=count),
            empty_response=empty_response,
        )  # fmt: skip
        self._model, self._template, self._best_last = llm, text_qa_template, best_last

    def _get_prompts(self) -> PromptDictType:
        return {"text_qa_template": self._template} if self._template is not None else {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._template = prompts.get("text_qa_template", self._template)

    def _turns(self, query: str, texts: Sequence[str]) -> list[Turn]:
        placed = texts[::-1] if self._best_last else texts
        passages: list[str | Passage] = []
        for text in placed:
            passages += [SEPARATOR, Passage(text)] if passages else [Passage(text)]
        if self._template is None:
            style = PromptStyle()
            return [
                Turn("system", (style.system,)),
                Turn("user", (*passages, SEPARATOR, style.closing + query)),
            ]
        # No input can contain this mark: it is random, and nodes are inserted after the prompt is formatted.
        mark = uuid.uuid4().hex
        messages = self._template.format_messages(llm=self._model, context_str=mark, query_str=query)
        if not any(mark in (message.content or "") for message in messages):
            raise InputError("The template has no {context_str}, so the model would not see any node. Add it.")
        turns = to_turns(messages)
        return [Turn(t.role, tuple(splice("".join(map(str, t.content)), mark, passages))) for t in turns]

    def get_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> str | Generator[str, None, None]:
        """Answer from texts."""
        pieces = self._model.pieces(self._model.converse(self._turns(query_str, text_chunks)))
        return pieces if self._streaming else "".join(pieces).strip()

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **_: Any
    ) -> str | AsyncGenerator[str, None]:
        """Answer from texts, without blocking the event loop."""
        stream = await self._model.converse_in_thread(self._turns(query_str, text_chunks))
        pieces = steps_in_thread(self._model.pieces(stream))
        return pieces if self._streaming else "".join([piece async for piece in pieces]).strip()

    # -- with sources ---------------------------------------------------------------------------------------

    @dispatcher.span
    def synthesize(
        self, query: QueryTextType, nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None, **_: Any,
    ) -> RESPONSE_TYPE:  # fmt: skip
        """Answer from nodes."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        if not nodes:
            response: RESPONSE_TYPE = (
                StreamingResponse(self._empty_response_generator())
                if self._streaming
                else Response(self._empty_response)
            )
        else:
            asked = _text(query)
            with self._callback_manager.event(CBEventType.SYNTHESIZE, payload={EventPayload.QUERY_STR: asked}) as event:
                stream = self._model.converse(self._turns(asked, _texts(nodes)))
                told, sources = _told(nodes), [*nodes, *(additional_source_nodes or ())]
                pieces = self._noting(stream, told)
                response = (
                    StreamingResponse(pieces, source_nodes=sources, metadata=told)
                    if self._streaming
                    else Response("".join(pieces).strip(), source_nodes=sources, metadata=told)
                )
                event.on_end(payload={EventPayload.RESPONSE: response})
        dispatcher.event(SynthesizeEndEvent(query=query, response=response))
        return response

    @dispatcher.span
    async def asynthesize(
        self, query: QueryTextType, nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None, **_: Any,
    ) -> RESPONSE_TYPE:  # fmt: skip
        """Answer from nodes, without blocking the event loop."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        if not nodes:
            response: RESPONSE_TYPE = (
                AsyncStreamingResponse(self._empty_response_agenerator())
                if self._streaming
                else Response(self._empty_response)
            )
        else:
            asked = _text(query)
            with self._callback_manager.event(CBEventType.SYNTHESIZE, payload={EventPayload.QUERY_STR: asked}) as event:
                stream = await self._model.converse_in_thread(self._turns(asked, _texts(nodes)))
                told, sources = _told(nodes), [*nodes, *(additional_source_nodes or ())]
                pieces = steps_in_thread(self._noting(stream, told))
                response = (
                    AsyncStreamingResponse(pieces, source_nodes=sources, metadata=told)
                    if self._streaming
                    else Response("".join([p async for p in pieces]).strip(), source_nodes=sources, metadata=told)
                )
                event.on_end(payload={EventPayload.RESPONSE: response})
        dispatcher.event(SynthesizeEndEvent(query=query, response=response))
        return response

    def _noting(self, stream: AnswerStream[Reply], told: dict[str, Any]) -> Generator[str, None, None]:
        """Yield the pieces of an answer. Its cost is added to `told` when it ends or is stopped."""
        try:
            yield from self._model.pieces(stream)
        finally:
            told["kvpacket"] = cost(stream.answer)


def _text(query: QueryTextType) -> str:
    return query.query_str if isinstance(query, QueryBundle) else query


def _texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [content(found.node) for found in nodes]


def _told(nodes: Sequence[NodeWithScore]) -> dict[str, Any]:
    """Return what is known before an answer is generated: the metadata of its nodes, as in other synthesizers."""
    return {found.node.node_id: found.node.metadata for found in nodes}
