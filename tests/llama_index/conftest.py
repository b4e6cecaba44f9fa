"""LlamaIndex components on a tiny model, with its global Settings out of reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llama_index.core.settings import _Settings

from kvpacket_rag.store.document_store import DocumentStore
from llama_index_kvpacket import KVPacketEmbedding, KVPacketLLM, KVPacketVectorStore, LlamaIndexEmbedder
from tests.conftest import HashEmbedder


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a model from the global Settings would ask for OpenAI."""

    def refused(_: object) -> None:
        raise AssertionError("Settings was read")

    for name in ("llm", "embed_model"):
        monkeypatch.setattr(_Settings, name, property(refused))


@pytest.fixture
def embedding() -> KVPacketEmbedding:
    return KVPacketEmbedding(HashEmbedder())


@pytest.fixture
def llm(store: DocumentStore) -> KVPacketLLM:
    return KVPacketLLM(store=store, max_tokens=10)


@pytest.fixture
def vectors(open_store: Callable[..., DocumentStore], embedding: KVPacketEmbedding) -> KVPacketVectorStore:
    return KVPacketVectorStore(open_store(embedder=LlamaIndexEmbedder(embedding)))
