"""Retrieval-augmented generation from stored key/value packets.

The model encodes each chunk once. To answer a question, it computes only the question.

    from kvpacket_rag import DocumentStore, PacketModel, RAG

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpacket_rag.answering.answer import Answer as Answer
    from kvpacket_rag.answering.answer import AnswerStream as AnswerStream
    from kvpacket_rag.answering.async_steps import steps_in_thread as steps_in_thread
    from kvpacket_rag.answering.comparison import Comparison as Comparison
    from kvpacket_rag.answering.conversation import Conversation as Conversation
    from kvpacket_rag.answering.conversation import Passage as Passage
    from kvpacket_rag.answering.conversation import Reply as Reply
    from kvpacket_rag.answering.conversation import Turn as Turn
    from kvpacket_rag.answering.conversation import splice as splice
    from kvpacket_rag.answering.external_documents import adopt as adopt
    from kvpacket_rag.answering.external_documents import check_own as check_own
    from kvpacket_rag.answering.generation import GenerationConfig as GenerationConfig
    from kvpacket_rag.answering.language_model import LanguageModelComponent as LanguageModelComponent
    from kvpacket_rag.answering.prompt import Block as Block
    from kvpacket_rag.answering.rag import RAG as RAG
    from kvpacket_rag.corpus.document import Chunk as Chunk
    from kvpacket_rag.corpus.document import Document as Document
    from kvpacket_rag.display.progress import progress_bar as progress_bar
    from kvpacket_rag.engine.chat import SEPARATOR as SEPARATOR
    from kvpacket_rag.engine.chat import PromptStyle as PromptStyle
    from kvpacket_rag.engine.transformers.packet_model import PacketModel as PacketModel
    from kvpacket_rag.errors import KVPacketError as KVPacketError
    from kvpacket_rag.events import BuildProgress as BuildProgress
    from kvpacket_rag.events import Event as Event
    from kvpacket_rag.packets.adapter import Adapter as Adapter
    from kvpacket_rag.packets.anchor import Anchor as Anchor
    from kvpacket_rag.packets.packet import Packet as Packet
    from kvpacket_rag.retrieval.embedder import Embedder as Embedder
    from kvpacket_rag.retrieval.embedder import SentenceEmbedder as SentenceEmbedder
    from kvpacket_rag.retrieval.embedder import Vectors as Vectors
    from kvpacket_rag.retrieval.embedder import embed_question as embed_question
    from kvpacket_rag.retrieval.embedder import unit_vectors as unit_vectors
    from kvpacket_rag.retrieval.filters import Filter as Filter
    from kvpacket_rag.retrieval.filters import matches as matches
    from kvpacket_rag.retrieval.search import Hit as Hit
    from kvpacket_rag.serve.metrics import Metrics as Metrics
    from kvpacket_rag.store.bundles.importer import import_bundle as import_bundle
    from kvpacket_rag.store.document_store import DocumentStore as DocumentStore
    from kvpacket_rag.store.settings import DEFAULT_MODEL as DEFAULT_MODEL

__version__ = "0.2.0"

_HOMES = {
    "Adapter": "packets.adapter",
    "Anchor": "packets.anchor",
    "Answer": "answering.answer",
    "AnswerStream": "answering.answer",
    "Block": "answering.prompt",
    "BuildProgress": "events",
    "Chunk": "corpus.document",
    "Comparison": "answering.comparison",
    "Conversation": "answering.conversation",
    "DEFAULT_MODEL": "store.settings",
    "Document": "corpus.document",
    "DocumentStore": "store.document_store",
    "Embedder": "retrieval.embedder",
    "Event": "events",
    "Filter": "retrieval.filters",
    "GenerationConfig": "answering.generation",
    "Hit": "retrieval.search",
    "KVPacketError": "errors",
    "LanguageModelComponent": "answering.language_model",
    "Metrics": "serve.metrics",
    "Packet": "packets.packet",
    "PacketModel": "engine.transformers.packet_model",
    "Passage": "answering.conversation",
    "PromptStyle": "engine.chat",
    "RAG": "answering.rag",
    "Reply": "answering.conversation",
    "SEPARATOR": "engine.chat",
    "SentenceEmbedder": "retrieval.embedder",
    "Turn": "answering.conversation",
    "Vectors": "retrieval.embedder",
    "adopt": "answering.external_documents",
    "check_own": "answering.external_documents",
    "embed_question": "retrieval.embedder",
    "import_bundle": "store.bundles.importer",
    "matches": "retrieval.filters",
    "progress_bar": "display.progress",
    "splice": "answering.conversation",
    "steps_in_thread": "answering.async_steps",
    "unit_vectors": "retrieval.embedder",
}

__all__ = [
    "DEFAULT_MODEL",
    "RAG",
    "SEPARATOR",
    "Adapter",
    "Anchor",
    "Answer",
    "AnswerStream",
    "Block",
    "BuildProgress",
    "Chunk",
    "Comparison",
    "Conversation",
    "Document",
    "DocumentStore",
    "Embedder",
    "Event",
    "Filter",
    "GenerationConfig",
    "Hit",
    "KVPacketError",
    "LanguageModelComponent",
    "Metrics",
    "Packet",
    "PacketModel",
    "Passage",
    "PromptStyle",
    "Reply",
    "SentenceEmbedder",
    "Turn",
    "Vectors",
    "__version__",
    "adopt",
    "check_own",
    "embed_question",
    "import_bundle",
    "matches",
    "progress_bar",
    "splice",
    "steps_in_thread",
    "unit_vectors",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"kvpacket_rag.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kvpacket_rag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
