"""A store's embedder as LangChain embeddings, and LangChain embeddings as the embedder of a store."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from kvpacket_rag import Embedder, SentenceEmbedder, embed_question

__all__ = ["KVPacketEmbeddings", "LangChainEmbedder"]


class KVPacketEmbeddings(Embeddings):
    """An embedder of this package as LangChain embeddings."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        """embedder: the embedder to use; by default that of stores, a sentence-transformers model."""
        self.embedder = embedder or SentenceEmbedder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector for each text."""
        return [[float(number) for number in row] for row in self.embedder.embed(texts)] if texts else []

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        return [float(number) for number in embed_question(self.embedder, text)]


class LangChainEmbedder:
    """LangChain embeddings as the embedder of a store: `DocumentStore.open(folder, embedder=LangChainEmbedder(...))`."""

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        """name: recorded in the store, which refuses another name. Default the class and the model it names, if any.

        Give a name where the default does not identify the model, for example for wrappers.
        """
        self.embeddings = embeddings
        names = (getattr(embeddings, attribute, None) for attribute in ("model_name", "model", "model_id", "repo_id"))
        model = next((value for value in names if isinstance(value, str)), "")
        self._name = name or ":".join(filter(None, (type(embeddings).__name__, model)))

    @property
    def name(self) -> str:
        """The name that is recorded in the store."""
        return self._name

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return one row of numbers for each text."""
        return self.embeddings.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return one row of numbers for a question."""
        return self.embeddings.embed_query(text)
