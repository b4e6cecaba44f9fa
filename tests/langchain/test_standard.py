"""LangChain's own suites of tests, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from kvpacket_rag.retrieval.embedder import SentenceEmbedder
from kvpacket_rag.store.document_store import DocumentStore
from langchain_kvpacket import (
    ChatKVPacket,
    KVPacketEmbeddings,
    KVPacketRetriever,
    KVPacketVectorStore,
    LangChainEmbedder,
)
from tests.conftest import HashEmbedder, handbook, tiny_model

MODEL = tiny_model()


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Generator[DocumentStore, None, None]:
    with DocumentStore.open(
        tmp_path_factory.mktemp("standard") / "kb", model=MODEL, embedder=HashEmbedder(), chunk_tokens=60
    ) as store:
        store.add(handbook())
        yield store


class TestRetriever(RetrieversIntegrationTests):
    store: DocumentStore

    @pytest.fixture(autouse=True)
    def _store(self, kb: DocumentStore) -> None:
        type(self).store = kb

    @property
    def retriever_constructor(self) -> type[KVPacketRetriever]:
        return KVPacketRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"store": self.store}

    @property
    def retriever_query_example(self) -> str:
        return "How long does the battery last?"


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Generator[VectorStore, None, None]:
        embedder = LangChainEmbedder(self.get_embeddings())
        with DocumentStore.open(tmp_path / "kb", model=MODEL, embedder=embedder) as store:
            yield KVPacketVectorStore(store)


class TestChatModelUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatKVPacket

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL}


class TestChatModel(ChatModelIntegrationTests):
    store: DocumentStore

    @pytest.fixture(autouse=True)
    def _store(self, kb: DocumentStore) -> None:
        type(self).store = kb

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatKVPacket

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"store": self.store, "max_tokens": 16}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {**super().standard_chat_model_params, "max_tokens": 16}

    @property
    def supports_model_override(self) -> bool:
        return False

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatKVPacket(store=self.store, max_tokens=8)
        prompt = self.store.chunks()[0].text + "\n\nWhat is it?"
        if not stream:
            return model.invoke(prompt)
        first, *others = model.stream(prompt)
        for chunk in others:
            first += chunk
        return first


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[KVPacketEmbeddings]:
        return KVPacketEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": HashEmbedder()}


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[KVPacketEmbeddings]:
        return KVPacketEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"embedder": SentenceEmbedder()}


def test_async_suites_really_ran_in_a_loop() -> None:
    """The suites' async tests are of no use if pytest does not await them."""
    assert asyncio.iscoroutinefunction(TestRetriever.test_ainvoke_returns_documents)
