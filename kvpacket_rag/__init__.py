"""Answer from stored key/value packets: the model reads each chunk once, and computes only the question.

    from kvpacket_rag import DocumentStore, PacketModel, RAG

Names are imported when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpacket_rag.adapter import Adapter as Adapter
    from kvpacket_rag.adopting import adopt as adopt
    from kvpacket_rag.adopting import check_own as check_own
    from kvpacket_rag.anchor import Anchor as Anchor
    from kvpacket_rag.answer import Answer as Answer
    from kvpacket_rag.answer import AnswerStream as AnswerStream
    from kvpacket_rag.chunking import Chunk as Chunk
    from kvpacket_rag.chunking import Document as Document
    from kvpacket_rag.comparison import Comparison as Comparison
    from kvpacket_rag.component import LanguageModelComponent as LanguageModelComponent
    from kvpacket_rag.conversation import Conversation as Conversation
    from kvpacket_rag.conversation import Passage as Passage
    from kvpacket_rag.conversation import Reply as Reply
    from kvpacket_rag.conversation import Turn as Turn
    from kvpacket_rag.conversation import splice as splice
    from kvpacket_rag.documents import DocumentStore as DocumentStore
    from kvpacket_rag.embedding import Embedder as Embedder
    from kvpacket_rag.embedding import SentenceEmbedder as SentenceEmbedder
    from kvpacket_rag.embedding import Vectors as Vectors
    from kvpacket_rag.embedding import embed_question as embed_question
    from kvpacket_rag.embedding import unit_vectors as unit_vectors
    from kvpacket_rag.errors import KVPacketError as KVPacketError
    from kvpacket_rag.events import Event as Event
    from kvpacket_rag.generator import GenerationConfig as GenerationConfig
    from kvpacket_rag.importing import import_bundle as import_bundle
    from kvpacket_rag.metrics import Metrics as Metrics
    from kvpacket_rag.model import SEPARATOR as SEPARATOR
    from kvpacket_rag.model import PacketModel as PacketModel
    from kvpacket_rag.model import PromptStyle as PromptStyle
    from kvpacket_rag.packet import Packet as Packet
    from kvpacket_rag.progress import progress_bar as progress_bar
    from kvpacket_rag.rag import RAG as RAG
    from kvpacket_rag.reading import Block as Block
    from kvpacket_rag.retrieval import Filter as Filter
    from kvpacket_rag.retrieval import Hit as Hit
    from kvpacket_rag.store_settings import DEFAULT_MODEL as DEFAULT_MODEL
    from kvpacket_rag.tally import BuildProgress as BuildProgress
    from kvpacket_rag.threads import steps_in_thread as steps_in_thread

__version__ = "0.1.0"

_HOMES = {
    "Adapter": "adapter",
    "Anchor": "anchor",
    "Answer": "answer",
    "AnswerStream": "answer",
    "Block": "reading",
    "BuildProgress": "tally",
    "Chunk": "chunking",
    "Comparison": "comparison",
    "Conversation": "conversation",
    "DEFAULT_MODEL": "store_settings",
    "Document": "chunking",
    "DocumentStore": "documents",
    "Embedder": "embedding",
    "Event": "events",
    "Filter": "retrieval",
    "GenerationConfig": "generator",
    "Hit": "retrieval",
    "KVPacketError": "errors",
    "LanguageModelComponent": "component",
    "Metrics": "metrics",
    "Packet": "packet",
    "PacketModel": "model",
    "Passage": "conversation",
    "PromptStyle": "model",
    "RAG": "rag",
    "Reply": "conversation",
    "SEPARATOR": "model",
    "SentenceEmbedder": "embedding",
    "Turn": "conversation",
    "Vectors": "embedding",
    "adopt": "adopting",
    "check_own": "adopting",
    "embed_question": "embedding",
    "import_bundle": "importing",
    "progress_bar": "progress",
    "splice": "conversation",
    "steps_in_thread": "threads",
    "unit_vectors": "embedding",
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
