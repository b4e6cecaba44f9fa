"""LangChain components that answer from packets. In an existing chain, one or two lines change.

    from langchain_kvpacket import ChatKVPacket, KVPacketRetriever

Names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvpacket_rag.errors import require

if TYPE_CHECKING:
    from langchain_kvpacket.chains import create_kvpacket_documents_chain as create_kvpacket_documents_chain
    from langchain_kvpacket.chains import create_kvpacket_retrieval_chain as create_kvpacket_retrieval_chain
    from langchain_kvpacket.chat_models import ChatKVPacket as ChatKVPacket
    from langchain_kvpacket.embeddings import KVPacketEmbeddings as KVPacketEmbeddings
    from langchain_kvpacket.embeddings import LangChainEmbedder as LangChainEmbedder
    from langchain_kvpacket.messages import format_packets as format_packets
    from langchain_kvpacket.retrievers import KVPacketRetriever as KVPacketRetriever
    from langchain_kvpacket.vectorstores import KVPacketVectorStore as KVPacketVectorStore

_HOMES = {
    "ChatKVPacket": "chat_models",
    "KVPacketEmbeddings": "embeddings",
    "KVPacketRetriever": "retrievers",
    "KVPacketVectorStore": "vectorstores",
    "LangChainEmbedder": "embeddings",
    "create_kvpacket_documents_chain": "chains",
    "create_kvpacket_retrieval_chain": "chains",
    "format_packets": "messages",
}

__all__ = [
    "ChatKVPacket",
    "KVPacketEmbeddings",
    "KVPacketRetriever",
    "KVPacketVectorStore",
    "LangChainEmbedder",
    "create_kvpacket_documents_chain",
    "create_kvpacket_retrieval_chain",
    "format_packets",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        require("langchain_core", extra="langchain", purpose="langchain_kvpacket")
        return getattr(importlib.import_module(f"langchain_kvpacket.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'langchain_kvpacket' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
