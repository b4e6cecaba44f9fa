"""The routes `/v1/chat/completions`, `/v1/models` and `/v1/prompt`: they answer questions from packets."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvpacket_rag.answering.answer import Answer, AnswerStream
from kvpacket_rag.answering.async_steps import steps_in_thread
from kvpacket_rag.answering.generation import GenerationConfig
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.errors import KVPacketError
from kvpacket_rag.serve.errors import describe
from kvpacket_rag.serve.limits import ConcurrencyLimit
from kvpacket_rag.serve.openai_api import ChatRequest, Conversation, check_model, completion, event, piece

__all__ = ["chat_routes", "model_name"]

logger = logging.getLogger(__name__)


def model_name(rag: RAG) -> str:
    """Return the model's name for clients: the last part of its path or address."""
    return rag.store.settings.model.replace("\\", "/").rstrip("/").split("/")[-1]


async def _answering(
    rag: RAG, wanted: ChatRequest, config: GenerationConfig, gate: ConcurrencyLimit
) -> AsyncGenerator[AnswerStream[Answer] | str, None]:
    """Wait for a free place. Then yield the stream of an answer, followed by the pieces of its text."""
    talk, options = Conversation(wanted.messages), wanted.kvpacket
    async with gate:
        stream = await asyncio.to_thread(
            talk.asking(rag, options).stream, talk.question, k=options.k, method=options.method, filter=options.filter,
            history=talk.history, config=config,
        )  # fmt: skip
        yield stream
        async with aclosing(steps_in_thread(cast("Generator[str, None, None]", iter(stream)))) as pieces:
            async for text in pieces:
                yield text


def chat_routes(rag: RAG, gate: ConcurrencyLimit) -> APIRouter:
    """Build the routes that answer questions."""
    router, model = APIRouter(), model_name(rag)
    about = {"id": model, "object": "model", "created": 0, "owned_by": "kvpacket"}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the only model, that of the knowledge base."""
        return {"object": "list", "data": [about]}

    @router.get("/v1/models/{name:path}", response_model=None)
    async def one(name: str) -> dict[str, Any]:
        """Describe the model if it is that of the knowledge base."""
        check_model(name, model)
        return about

    @router.post("/v1/chat/completions", response_model=None)
    async def complete(request: Request, wanted: ChatRequest) -> Response:
        """Answer the last message from the documents."""
        wanted.check(model)
        config = wanted.config(rag.config)
        name, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        steps = _answering(rag, wanted, config, gate)
        stream = cast("AnswerStream[Answer]", await anext(steps))  # errors are raised here, before a status is sent
        if wanted.stream:
            return _events(steps, stream, wanted, config, (name, created, model))
        async with aclosing(steps):
            async for _ in steps:
                if await request.is_disconnected():
                    break
        return JSONResponse(completion(name, created, model, stream.answer, config))

    @router.post("/v1/prompt")
    async def prompt(wanted: ChatRequest) -> dict[str, Any]:
        """Return the prompt block by block, and for each block whether its states are reused."""
        talk, options = Conversation(wanted.messages), wanted.kvpacket
        async with gate:
            blocks = await asyncio.to_thread(
                talk.asking(rag, options).prompt, talk.question, k=options.k, method=options.method, filter=options.filter, history=talk.history
            )  # fmt: skip
        return {
            "object": "prompt",
            "data": [
                {
                    "kind": block.kind,
                    "tokens": block.tokens,
                    "reused": block.reused,
                    "document": None if block.chunk is None else block.chunk.document,
                    "text": block.text,
                }
                for block in blocks
            ],
        }

    return router


def _events(
    steps: AsyncGenerator[Any, None], stream: AnswerStream[Answer], wanted: ChatRequest, config: GenerationConfig,
    heading: tuple[str, int, str],
) -> StreamingResponse:  # fmt: skip
    """Send the rest of an answer as server-sent events."""

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(steps):
            try:
                yield event(piece(*heading, stream.answer))
                async for text in steps:
                    yield event(piece(*heading, stream.answer, text=text))
            except Exception as error:  # the status has been sent already, so the error becomes an event
                if not isinstance(error, KVPacketError):
                    logger.exception("An answer failed while it was being streamed.")
                yield event(describe(error)[1])
                return
            yield event(piece(*heading, stream.answer, ended=config))
            if wanted.stream_options is not None and wanted.stream_options.include_usage:
                yield event(piece(*heading, stream.answer, usage=True))
            yield "data: [DONE]\n\n"

    return StreamingResponse(
        events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )
