"""The vector index: replaces, removes, filters, and agrees with brute force."""

from __future__ import annotations

import numpy as np
import pytest

from kvpacket_rag.errors import InputError
from kvpacket_rag.retrieval.embedder import unit_vectors
from kvpacket_rag.retrieval.vector_index import VectorIndex

DICE = np.random.default_rng(0)


def filled(n=200, dimension=8):
    vectors = unit_vectors(DICE.normal(size=(n, dimension)))
    index = VectorIndex(dimension)
    index.add(list(range(100, 100 + n)), vectors)
    return index, vectors


def test_search_agrees_with_brute_force_also_among_some():
    index, vectors = filled()
    for _ in range(20):
        query = unit_vectors(DICE.normal(size=(1, 8)))[0]
        order = np.argsort(-(vectors @ query)) + 100
        assert [n.id for n in index.search(query, 5)] == order[:5].tolist()
        among = DICE.choice(np.arange(100, 300), 30, replace=False).tolist()
        assert [n.id for n in index.search(query, 5, among=among)] == [i for i in order.tolist() if i in among][:5]


def test_adding_an_id_again_replaces_it():
    index, vectors = filled()
    index.add([100], -vectors[:1])
    assert len(index) == 200
    assert index.search(-vectors[0], 1)[0].id == 100
    assert index.search(vectors[0], 200)[-1].id == 100


def test_removing_keeps_the_others_where_they_were():
    index, vectors = filled(3)
    index.remove([100, 999])
    assert [index.search(vector, 1)[0].id for vector in vectors[1:]] == [101, 102]
    assert len(index) == 2


def test_asking_for_more_than_there_is_and_for_nothing():
    index, vectors = filled(3)
    assert len(index.search(vectors[0], 50)) == 3
    assert index.search(vectors[0], 50, among=[]) == []
    assert index.search(vectors[0], 50, among=[7]) == []
    assert VectorIndex(8).search(vectors[0], 3) == []


def test_another_dimension_is_refused_with_both_numbers():
    index, _ = filled()
    with pytest.raises(InputError, match=r"9 numbers.* 8"):
        index.search(np.zeros(9, np.float32), 1)
    with pytest.raises(InputError, match=r"8 numbers, got 9"):
        index.add([1], np.zeros((1, 9), np.float32))


def test_unit_vectors_keep_zero_rows():
    assert unit_vectors([[0.0, 0.0], [3.0, 4.0]]).tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8])]
