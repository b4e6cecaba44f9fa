"""An in-memory FAISS index that finds the nearest vectors by cosine similarity.

The index is derived from database rows. It is never the only copy of any data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from kvpacket_rag.errors import InputError
from kvpacket_rag.retrieval.embedder import Vectors

__all__ = ["Neighbour", "VectorIndex"]


@dataclass(frozen=True)
class Neighbour:
    """A vector that a search found."""

    id: int
    score: float
    """Cosine similarity to within 0.0005. Higher is nearer."""


class VectorIndex:
    """An index of unit vectors by integer id. Threads may use it at the same time."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._lock = threading.Lock()
        # The search compares all vectors. Vectors of 16 bits take half the memory and a fifth of the time of 32 bits,
        # and their rounding changes a cosine by at most 0.0005. (The type annotations of FAISS lack its numpy
        # interface.)
        kind = faiss.ScalarQuantizer.QT_fp16
        self._index: Any = faiss.IndexIDMap2(faiss.IndexScalarQuantizer(dimension, kind, faiss.METRIC_INNER_PRODUCT))
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: list[int], vectors: Vectors) -> None:
        """Add vectors [n, dimension] of length 1. The vectors of existing ids are replaced.

        Raises `InputError`, which names both dimensions, if they differ.
        """
        if not ids:
            return
        if vectors.shape != (len(ids), self.dimension):
            raise InputError(
                f"The index holds vectors of {self.dimension} numbers, got {vectors.shape[-1]} for {len(ids)} ids. Use the embedder it was made with."
            )
        with self._lock:
            self._remove(set(ids) & self._ids)  # otherwise FAISS would keep both
            self._index.add_with_ids(np.ascontiguousarray(vectors), np.asarray(ids, dtype=np.int64))
            self._ids.update(ids)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove vectors. Unknown ids are ignored."""
        with self._lock:
            self._remove(set(ids) & self._ids)

    def _remove(self, ids: set[int]) -> None:
        if ids:
            self._index.remove_ids(np.asarray(sorted(ids), dtype=np.int64))
            self._ids -= ids

    def search(self, vector: Vectors, k: int, *, among: Iterable[int] | None = None) -> list[Neighbour]:
        """Find the k nearest vectors, best first, or fewer if there are fewer.

        among: ids to search; default all.
        Raises `InputError` if the vector has another dimension than the index.
        """
        if vector.shape[-1] != self.dimension:
            raise InputError(
                f"The question's vector has {vector.shape[-1]} numbers, the index {self.dimension}. Use the embedder the store was made with."
            )
        with self._lock:
            allowed = None if among is None else self._ids.intersection(among)
            k = min(k, len(self._ids) if allowed is None else len(allowed))
            if k <= 0:
                return []
            query = np.ascontiguousarray(vector.reshape(1, -1), dtype=np.float32)
            if allowed is None:
                scores, ids = self._index.search(query, k)
            else:
                selector = faiss.IDSelectorBatch(np.asarray(sorted(allowed), dtype=np.int64))
                parameters = faiss.SearchParameters()
                parameters.sel = selector
                scores, ids = self._index.search(query, k, params=parameters)
        return [Neighbour(int(i), float(s)) for i, s in zip(ids[0], scores[0], strict=True) if i >= 0]
