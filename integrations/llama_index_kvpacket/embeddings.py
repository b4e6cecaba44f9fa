"""A store's embedder as a LlamaIndex embedding model, and a LlamaIndex embedding model as the embedder of a store."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from kvpacket_rag import Embedder, SentenceEmbedder, embed_question

__all__ = ["KVPacketEmbedding", "LlamaIndexEmbedder"]


class KVPacketEmbedding(BaseEmbedding):
    """An embedder of this package as a LlamaIndex embedding model."""

    _embedder: Embedder = PrivateAttr()

    def __init__(self, embedder: Embedder | None = None, **kwargs: Any) -> None:
        """embedder: the embedder to use; by default that of stores, a sentence-transformers model."""
        embedder = embedder or SentenceEmbedder()
        super().__init__(model_name=embedder.name, **kwargs)
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the component."""
        return "KVPacketEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [[float(number) for number in row] for row in self._embedder.embed(texts)]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(number) for number in embed_question(self._embedder, query)]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)


class LlamaIndexEmbedder:
    """A LlamaIndex embedding model as the embedder of a store."""

    def __init__(self, model: BaseEmbedding, name: str | None = None) -> None:
        """name: recorded in the store, which refuses another name. Default the class and model names."""
        self.model = model
        self._name = name or f"{model.class_name()}:{model.model_name}"

    @property
    def name(self) -> str:
        """The name that is recorded in the store."""
        return self._name

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return one row of numbers for each text."""
        return self.model.get_text_embedding_batch(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return one row of numbers for a question."""
        return self.model.get_query_embedding(text)
