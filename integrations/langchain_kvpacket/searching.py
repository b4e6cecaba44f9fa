"""Similarity, diversity and thresholds over a store, shared by the retriever and the vector store."""

from __future__ import annotations

import numpy as np
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from kvpacket_rag import DocumentStore, Filter, Hit, Vectors
from kvpacket_rag.errors import InputError

__all__ = ["diverse", "relevance"]


def relevance(cosine: float) -> float:
    """Return the cosine (-1 to 1) as a relevance from 0 to 1; higher is nearer."""
    return min(1.0, max(0.0, (1 + cosine) / 2))


def diverse(
    store: DocumentStore, vector: Vectors, k: int, *, fetch_k: int, lambda_mult: float, filter: Filter | None
) -> list[Hit]:
    """Find k of the `fetch_k` nearest chunks that are near the vector and differ from each other.

    This is maximal marginal relevance.

    lambda_mult: 1 for similarity only, 0 for diversity only. Raises `InputError` outside this range.
    """
    if not 0 <= lambda_mult <= 1:
        raise InputError(f"lambda_mult must be between 0 and 1, got {lambda_mult}.")
    hits, vectors = store.nearest_with_vectors(vector, max(k, fetch_k), filter=filter)
    if not hits:
        return []
    rows = [row.tolist() for row in vectors]
    chosen = maximal_marginal_relevance(np.asarray(vector), rows, lambda_mult=lambda_mult, k=k)
    return [hits[number] for number in chosen]
