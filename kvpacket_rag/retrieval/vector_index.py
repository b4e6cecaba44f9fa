"""Nearest vectors by cosine: a FAISS index in memory, derived from rows and never the only copy of anything."""

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
    """A found vector."""

    id: int
    score: float
    """Cosine to within 0.0005, higher is nearer."""


class VectorIndex:
    """Unit vectors by integer id. Threads may use it at the same time."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._lock = threading.Lock()
        # All vectors are compared. 16 bit, whose rounding moves a cosine by 0.0005 at most, take half the memory and a
        # fifth of the time of 32. (The annotations FAISS ships do not know its numpy interface.)
        kind = faiss.ScalarQuantizer.QT_fp16
        self._index: Any = faiss.IndexIDMap2(faiss.IndexScalarQuantizer(dimension, kind, faiss.METRIC_INNER_PRODUCT))
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: list[int], vectors: Vectors) -> None:
        """Add vectors [n, dimension] of length 1; an id that is there already is replaced.

        Raises `InputError` naming both dimensions if they differ.
        """
        if not ids:
            return
        if vectors.shape != (len(ids), self.dimension):
            raise InputError(
                f"The index holds vectors of {self.dimension} numbers, got {vectors.shape[-1]} for {len(ids)} ids. Use the embedder it was made with."
            )
        with self._lock:
            self._remove(set(ids) & self._ids)  # FAISS would keep both
            self._index.add_with_ids(np.ascontiguousarray(vectors), np.asarray(ids, dtype=np.int64))
            self._ids.update(ids)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove vectors; ids that are not there are ignored."""
        with self._lock:
            self._remove(set(ids) & self._ids)

    def _remove(self, ids: set[int]) -> None:
        if ids:
            self._index.remove_ids(np.asarray(sorted(ids), dtype=np.int64))
            self._ids -= ids

    def search(self, vector: Vectors, k: int, *, among: Iterable[int] | None = None) -> list[Neighbour]:
        """Find the k nearest of all vectors, or of those `among` the given ids, best first; fewer if there are fewer."""
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
