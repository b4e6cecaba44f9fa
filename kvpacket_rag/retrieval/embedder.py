"""Embedders turn texts into vectors for retrieval."""

from __future__ import annotations

import threading
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kvpacket_rag.display.progress import quiet_loading
from kvpacket_rag.engine.catalogue import CATALOGUE, fetch
from kvpacket_rag.errors import ModelLoadError

__all__ = [
    "DEFAULT_EMBEDDER",
    "Embedder",
    "QueryEmbedder",
    "SentenceEmbedder",
    "Vectors",
    "embed_question",
    "unit_vectors",
]

DEFAULT_EMBEDDER = "all-minilm-l6-v2"

Vectors = NDArray[np.float32]
"""A float32 array [n, dimension]: one row for each text."""


@runtime_checkable
class Embedder(Protocol):
    """The protocol of embedders, which turn texts into vectors of one fixed dimension."""

    @property
    def name(self) -> str:
        """Name recorded in the store, which refuses an embedder with another name."""

    def embed(self, texts: list[str]) -> Any:
        """Return one row of numbers for each text, as an array or nested list [n, dimension]."""


@runtime_checkable
class QueryEmbedder(Protocol):
    """The protocol of embedders that embed questions in a different way than texts."""

    def embed_query(self, text: str) -> Any:
        """Return one row of numbers for a question."""


def embed_question(embedder: Embedder, text: str) -> Any:
    """Return one row of numbers for a question. Use the embedder's `embed_query` if it has one."""
    return embedder.embed_query(text) if isinstance(embedder, QueryEmbedder) else embedder.embed([text])[0]


def unit_vectors(rows: Any) -> Vectors:
    """Return rows as float32 vectors of length 1, so that their inner product is the cosine. Zero rows stay zero."""
    vectors = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


class SentenceEmbedder:
    """A sentence-transformers model, loaded on first use."""

    def __init__(self, name: str = DEFAULT_EMBEDDER, *, device: str | None = None) -> None:
        """name: catalogue name, Hugging Face id or folder."""
        self._name, self._device = name, device
        self._model: Any = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name given to the constructor."""
        return self._name

    def embed(self, texts: list[str]) -> Vectors:
        """Embed texts as float32 [n, dimension]. Raises `ModelLoadError` if the model cannot be loaded."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return np.asarray(
                self._model.encode(texts, batch_size=32, show_progress_bar=False, convert_to_numpy=True),
                dtype=np.float32,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return name and device only. A copy in another process loads the model itself."""
        return {"name": self._name, "device": self._device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy that has not loaded its model yet."""
        SentenceEmbedder.__init__(self, state["name"], device=state["device"])

    def _load(self) -> Any:
        from sentence_transformers import SentenceTransformer

        source = str(fetch(self._name)) if self._name in CATALOGUE else self._name
        try:
            with quiet_loading():
                return SentenceTransformer(source, device=self._device)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelLoadError(
                f"No embedder could be loaded from {self._name!r}: {str(error).splitlines()[0]} Give a sentence-transformers id or folder."
            ) from error
