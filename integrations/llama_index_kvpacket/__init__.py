"""LlamaIndex components that answer from packets. In an existing query engine, one or two lines change.

    from llama_index_kvpacket import KVPacketQueryEngine

Names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvpacket_rag.errors import require

if TYPE_CHECKING:
    from llama_index_kvpacket.embeddings import KVPacketEmbedding as KVPacketEmbedding
    from llama_index_kvpacket.embeddings import LlamaIndexEmbedder as LlamaIndexEmbedder
    from llama_index_kvpacket.events import KVPacketAnswerEvent as KVPacketAnswerEvent
    from llama_index_kvpacket.events import KVPacketLoadEvent as KVPacketLoadEvent
    from llama_index_kvpacket.llms import KVPacketLLM as KVPacketLLM
    from llama_index_kvpacket.query_engines import KVPacketQueryEngine as KVPacketQueryEngine
    from llama_index_kvpacket.retrievers import KVPacketRetriever as KVPacketRetriever
    from llama_index_kvpacket.synthesizers import KVPacketSynthesizer as KVPacketSynthesizer
    from llama_index_kvpacket.vector_stores import KVPacketVectorStore as KVPacketVectorStore

_HOMES = {
    "KVPacketAnswerEvent": "events",
    "KVPacketEmbedding": "embeddings",
    "KVPacketLLM": "llms",
    "KVPacketLoadEvent": "events",
    "KVPacketQueryEngine": "query_engines",
    "KVPacketRetriever": "retrievers",
    "KVPacketSynthesizer": "synthesizers",
    "KVPacketVectorStore": "vector_stores",
    "LlamaIndexEmbedder": "embeddings",
}

__all__ = [
    "KVPacketAnswerEvent",
    "KVPacketEmbedding",
    "KVPacketLLM",
    "KVPacketLoadEvent",
    "KVPacketQueryEngine",
    "KVPacketRetriever",
    "KVPacketSynthesizer",
    "KVPacketVectorStore",
    "LlamaIndexEmbedder",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require("llama_index.core", extra="llama-index", purpose="llama_index_kvpacket")
        return getattr(importlib.import_module(f"llama_index_kvpacket.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'llama_index_kvpacket' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
