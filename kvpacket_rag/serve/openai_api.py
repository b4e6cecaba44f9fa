"""Requests and responses of OpenAI's chat completions, with one more field for sources and cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpacket_rag.answering.answer import Answer
from kvpacket_rag.answering.generation import GenerationConfig, configured
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.engine.assembly import Method
from kvpacket_rag.errors import InputError, NotFoundError

__all__ = ["EXTENSION", "ChatRequest", "Conversation", "check_model", "completion", "error_body", "event", "piece"]

EXTENSION = "kvpacket"
"""The field of requests and responses that OpenAI's API does not have."""
HARMLESS = {
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "reasoning_effort", "verbosity",
}  # fmt: skip
"""Settings of OpenAI's API that do not change the answers of this server. They are accepted and ignored."""
NOTHING: tuple[Any, ...] = (None, 0, False, "", "auto", "none", [], {}, {"type": "text"})
"""Values that turn a setting off. They are accepted for settings that this server does not support."""


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Options(BaseModel):
    """The field `kvpacket` of a request."""

    model_config = ConfigDict(extra="forbid")

    method: Method = "packet"
    k: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Chunks in the context."""
    filter: dict[str, Any] | None = None
    """Conditions on metadata, as in `retrieval.filters`."""
    min_score: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Lowest score of a chunk in the context."""


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


def check_model(asked: str, model: str) -> None:
    """Raise `NotFoundError` if a request asks for another model than that of the knowledge base."""
    if asked != model:
        raise NotFoundError(f"There is no model {asked!r} here; the model of this knowledge base is {model!r}.")


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`."""

    model_config = ConfigDict(extra="allow")

    messages: list[Message] = Field(min_length=1)
    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Literal[1] | None = None
    kvpacket: Options = Options()

    def check(self, model: str) -> None:
        """Raise `InputError` for a setting that this server does not support, `NotFoundError` for another model."""
        asked = sorted(
            name for name, value in (self.model_extra or {}).items() if name not in HARMLESS and value not in NOTHING
        )
        if asked:
            raise InputError(
                f"This server does not support {', '.join(asked)}. Leave it out; the server adds documents to the prompt itself."
            )
        check_model(self.model or model, model)

    def config(self, defaults: GenerationConfig) -> GenerationConfig:
        """Return how to choose tokens and when to stop. Raises `InputError` for a value out of range."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": stop,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
        }
        return configured(defaults, given, "A chat completion")


class Conversation:
    """The messages of a request, split into the question, the earlier turns and the system text."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """Raise `InputError` unless the last message is the user's. The chat template checks that turns alternate."""
        self.system = "\n\n".join(m.text for m in messages if m.role in ("system", "developer"))
        turns = [m for m in messages if m.role in ("user", "assistant")]
        if not turns or turns[-1].role != "user":
            raise InputError("The last message must be the user's, because it is the question. Put it at the end.")
        self.question = turns[-1].text
        self.history = tuple({"role": turn.role, "content": turn.text} for turn in turns[:-1])

    def asking(self, rag: RAG, options: Options) -> RAG:
        """Return the RAG that answers, with the system text and the lowest score of this request if there are any."""
        if self.system:
            rag = replace(rag, style=replace(rag.style, system=self.system))
        return rag if options.min_score is None else replace(rag, min_score=options.min_score)


def _extension(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.to_json().items() if name != "answer"}


def _usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    prompt = usage.reused + usage.computed_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.answer_tokens,
        "total_tokens": prompt + usage.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.reused},
    }


def _finish(answer: Answer, config: GenerationConfig) -> str:
    return "length" if answer.usage.answer_tokens >= config.max_new_tokens else "stop"


def completion(name: str, created: int, model: str, answer: Answer, config: GenerationConfig) -> dict[str, Any]:
    """Return a whole answer as OpenAI's `chat.completion`."""
    message = {"role": "assistant", "content": answer.text}
    return {
        "id": name,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(answer, config), "logprobs": None}],
        "usage": _usage(answer),
        EXTENSION: _extension(answer),
    }


def piece(
    name: str, created: int, model: str, answer: Answer, *, text: str | None = None, ended: GenerationConfig | None = None,
    usage: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return a piece of an answer as OpenAI's `chat.completion.chunk`.

    The first piece (neither text nor end) has the sources, and the last piece also has the cost. `usage` requests the
    piece after the last, which some clients ask for.
    """
    body: dict[str, Any] = {"id": name, "object": "chat.completion.chunk", "created": created, "model": model}
    if usage:
        return {**body, "choices": [], "usage": _usage(answer)}
    delta: dict[str, str] = {"content": text} if text is not None else {}
    if text is None and ended is None:
        delta = {"role": "assistant", "content": ""}
    finish = None if ended is None else _finish(answer, ended)
    body["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
    return body if text is not None else {**body, EXTENSION: _extension(answer)}


def error_body(message: str, kind: str, code: str) -> dict[str, Any]:
    """Return an error in the form that OpenAI's clients understand."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def event(value: dict[str, Any]) -> str:
    """Return one server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
