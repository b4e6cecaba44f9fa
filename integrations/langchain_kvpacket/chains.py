"""Chains over documents that replace `create_stuff_documents_chain` and `create_retrieval_chain`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, MessagesPlaceholder, format_document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.base import RunnableBindingBase

from kvpacket_rag import SEPARATOR, PromptStyle, splice
from kvpacket_rag.errors import InputError
from langchain_kvpacket.messages import document_block, document_blocks

__all__ = ["create_kvpacket_documents_chain", "create_kvpacket_retrieval_chain", "default_prompt"]

CONTEXT = "context"
NOTHING_FOUND = "No document fits the question."
"""Default answer without documents."""


def default_prompt() -> ChatPromptTemplate:
    """Return the prompt that the store's own answers use, with earlier turns (`chat_history`) if there are any."""
    style = PromptStyle()
    return ChatPromptTemplate(
        [
            ("system", style.system),
            MessagesPlaceholder("chat_history", optional=True),
            ("human", f"{{{CONTEXT}}}{SEPARATOR}{style.closing}{{question}}"),
        ]
    )


def create_kvpacket_documents_chain(
    llm: LanguageModelLike, prompt: BasePromptTemplate[Any] | None = None, *,
    output_parser: BaseOutputParser[Any] | None = None, document_prompt: BasePromptTemplate[str] | None = None,
    document_separator: str = SEPARATOR, document_variable_name: str = CONTEXT, best_last: bool = False,
    nothing_found: str | None = NOTHING_FOUND,
) -> Runnable[dict[str, Any], Any]:  # fmt: skip
    """Build a chain that puts documents into a prompt, each from its packet.

    The chain takes `{context: list[Document], question or input: str, ...}`. It returns text, or the result of
    `output_parser`.
    prompt: any prompt with the variable `context`, or with `document_variable_name`. document_prompt: the format of a
    document, with `page_content` and metadata as variables. best_last: place documents in reverse order, so that the
    best is next to the question, where small models use it best. nothing_found: the answer if there are no documents;
    the model is not asked then. None asks it all the same. Raises `InputError` if the prompt has no variable for
    the documents.
    """
    prompt = prompt or default_prompt()
    as_messages = any(
        isinstance(part, MessagesPlaceholder) and part.variable_name == document_variable_name
        for part in getattr(prompt, "messages", ())
    )
    if document_variable_name not in prompt.input_variables:
        raise InputError(
            f"The prompt needs a variable {document_variable_name!r} for the documents; it has {sorted(prompt.input_variables)}."
        )

    def messages(inputs: dict[str, Any]) -> list[BaseMessage]:
        documents = list(inputs[document_variable_name])
        # No input can contain this mark: it is random, and documents are inserted after the prompt is formatted.
        mark = uuid.uuid4().hex
        placed = documents[::-1] if best_last else documents
        blocks = document_blocks(placed, document_separator, lambda document: _written(document, document_prompt))
        names = {"question": inputs.get("input"), "input": inputs.get("question")}
        values = {
            **{k: v for k, v in names.items() if v is not None},
            **inputs,
            document_variable_name: [HumanMessage(mark)] if as_messages else mark,
        }
        return [_fill(message, mark, blocks) for message in prompt.invoke(values).to_messages()]

    named = RunnableLambda(messages).with_config(run_name="format_packets")
    parser: BaseOutputParser[Any] = output_parser or StrOutputParser()
    chain: Runnable[dict[str, Any], Any] = named | llm | parser
    if nothing_found is not None:
        said: Runnable[Any, Any] = (
            RunnableLambda(lambda _: AIMessage(nothing_found)).with_config(run_name="nothing_found") | parser
        )
        chain = RunnableBranch((lambda inputs: not inputs[document_variable_name], said), chain)
    return chain.with_config(run_name="kvpacket_documents_chain")


def _written(document: Document, document_prompt: BasePromptTemplate[str] | None) -> list[dict[str, Any]]:
    """Return the text blocks of a document in the format of the document prompt. Its own text is a separate block."""
    block = document_block(document)
    if document_prompt is None:
        return [block]
    mark = uuid.uuid4().hex
    marked = Document(mark, metadata=document.metadata, id=document.id)
    return _split(format_document(marked, document_prompt), mark, [block])


def _split(text: str, mark: str, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a text as text blocks, with other blocks inserted at each mark."""
    parts = splice(text, mark, blocks)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def _fill(message: BaseMessage, mark: str, blocks: Sequence[dict[str, Any]]) -> BaseMessage:
    """Return the message with blocks inserted at the mark."""
    if isinstance(message.content, str):
        if mark not in message.content:
            return message
        return message.model_copy(update={"content": _split(message.content, mark, blocks)})
    content: list[Any] = []
    for block in message.content:
        text = block if isinstance(block, str) else block.get("text") if block.get("type") == "text" else None
        content += _split(text, mark, blocks) if text is not None and mark in text else [block]
    return message.model_copy(update={"content": content})


def create_kvpacket_retrieval_chain(
    retriever: BaseRetriever | Runnable[dict[str, Any], list[Document]],
    documents_chain: Runnable[dict[str, Any], Any],
) -> Runnable[Any, Any]:
    """Build a chain that takes `{input: str, ...}`, retrieves documents, and returns `{input, context, answer, ...}`.

    retriever: a retriever, which receives the input, or another runnable, which receives all inputs.
    """
    inner: Any = retriever
    while isinstance(inner, RunnableBindingBase):  # unwrap a bound or configured retriever
        inner = inner.bound
    found: Any = (RunnableLambda(_asked) | retriever) if isinstance(inner, BaseRetriever) else retriever
    retrieve = found.with_config(run_name="retrieve_documents")
    return (
        RunnablePassthrough.assign(**{CONTEXT: retrieve})
        .assign(answer=documents_chain)
        .with_config(run_name="kvpacket_retrieval_chain")
    )


def _asked(inputs: dict[str, Any]) -> Any:
    if "input" not in inputs and "question" not in inputs:
        raise InputError(f"The chain needs 'input' or 'question' to retrieve documents; got {sorted(inputs)}.")
    return inputs.get("input", inputs.get("question"))
