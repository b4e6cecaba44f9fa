"""Convert LangChain messages to turns of a conversation, and documents to blocks of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage

from kvpacket_rag import SEPARATOR, Passage, Turn
from kvpacket_rag.errors import InputError
from langchain_kvpacket.documents import chunk_id

__all__ = ["document_block", "document_blocks", "format_packets", "to_turns"]


def document_block(document: Document) -> dict[str, Any]:
    """Return a document as a text block that names its chunk. Other models see only its text."""
    extras = {"kvpacket": {"id": chunk_id(document)}}
    return {"type": "text", "text": document.page_content, "extras": extras}


def document_blocks(
    documents: Iterable[Document],
    separator: str = SEPARATOR,
    write: Callable[[Document], list[dict[str, Any]]] = lambda document: [document_block(document)],
) -> list[dict[str, Any]]:
    """Return documents as blocks, with the separator between them. write: returns the blocks of one document."""
    blocks: list[dict[str, Any]] = []
    for document in documents:
        if blocks:
            blocks.append({"type": "text", "text": separator})
        blocks += write(document)
    return blocks


def format_packets(documents: Sequence[Document]) -> list[BaseMessage]:
    """Return documents as messages for a `MessagesPlaceholder`, instead of joining their texts.

    The user's turn continues with what follows them in the prompt.
    """
    return [HumanMessage(content=[*document_blocks(documents)])] if documents else []


def to_turns(messages: Sequence[BaseMessage]) -> list[Turn]:
    """Return messages as turns.

    Raises `InputError` for tool messages, and for content other than text.
    """
    if not messages:
        raise InputError("There are no messages. Give at least one.")
    return [Turn(_role(message), tuple(_parts(message))) for message in messages]


def _role(message: BaseMessage) -> str:
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        if message.tool_calls:
            raise InputError("The message calls tools, which this chat model does not support. Leave it out.")
        return "assistant"
    if isinstance(message, ChatMessage):
        return {"human": "user", "ai": "assistant", "developer": "system"}.get(message.role, message.role)
    raise InputError(
        f"Messages must be system, human or AI messages; got one of type {message.type!r}. Tools are not supported."
    )


def _parts(message: BaseMessage) -> Iterator[str | Passage]:
    content = [message.content] if isinstance(message.content, str) else message.content
    for block in content:
        if isinstance(block, str):
            yield block
        elif block.get("type") == "text":
            # References are taken only from a separate field, never from the text itself.
            named = (block.get("extras") or {}).get("kvpacket")
            text = str(block.get("text", ""))
            yield Passage(text, str(named.get("id", ""))) if isinstance(named, dict) else text
        else:
            raise InputError(f"Only text is supported; got a content block of type {block.get('type')!r}.")
