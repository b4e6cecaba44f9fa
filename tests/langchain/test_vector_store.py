"""`KVPacketVectorStore`: what users of other vector stores ran into."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import InMemoryRecordManager, index

from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError, MismatchError
from kvpacket_rag.store.document_store import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever, KVPacketVectorStore, LangChainEmbedder
from tests.conftest import HANDBOOK, handbook
from tests.support.watching import encoding

COLOURS = [f"The house of number {n} is painted in colour {n}." for n in range(12)]


@pytest.fixture
def vectors(open_store: Callable[..., DocumentStore]) -> KVPacketVectorStore:
    return KVPacketVectorStore(open_store())


def test_documents_come_back_as_they_were_given(vectors: KVPacketVectorStore):
    given = [
        Document("  Spaces around it, kept.  \n", id="1", metadata={"a": [1, {"b": None}], "x": 1.5}),
        Document("No id here, no metadata either."),
    ]
    ids = vectors.add_documents(given)
    assert ids[0] == "1"
    assert given[1].id is None
    found = vectors.get_by_ids([ids[1], "1", "nothing"])
    assert found == [Document("No id here, no metadata either.", id=ids[1]), given[0]]
    assert vectors.similarity_search("Spaces around it, kept.", 1) == [given[0]]


def test_ids_given_beside_the_documents_win_and_their_number_is_checked(vectors: KVPacketVectorStore):
    documents = [Document("One of two documents.", id="x"), Document("The other of two documents.", id="y")]
    assert vectors.add_documents(documents, ids=["1", None])[0] == "1"
    assert vectors.add_texts(["Some text to keep."], ids=["3"]) == ["3"]
    with pytest.raises(InputError, match="got 1 ids for 2 documents"):
        vectors.add_documents(documents, ids=["1"])
    with pytest.raises(InputError, match="no text"):
        vectors.add_documents([Document("")])
    with pytest.raises(InputError, match="JSON"):
        vectors.add_documents([Document("With bytes in its metadata.", metadata={"a": b"12"})])
    assert len(vectors.store.documents()) == 3


def test_the_same_id_replaces_also_within_one_call_and_an_error_changes_nothing(vectors: KVPacketVectorStore):
    vectors.add_documents([Document("The first version of it.", id="1"), Document("The second version of it.", id="1")])
    assert [d.page_content for d in vectors.get_by_ids(["1"])] == ["The second version of it."]
    with pytest.raises(InputError):
        vectors.add_documents([Document("A good one, not kept.", id="2"), Document("", id="3")])
    assert [d.id for d in vectors.store.documents()] == ["1"]
    assert [d.id for d in vectors.similarity_search("version", 5)] == ["1"]


def test_deleting_the_first_leaves_the_others_in_their_places(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS[:3], ids=["0", "1", "2"])
    assert vectors.delete(["0", "never there"])
    for n in (1, 2):
        assert [d.id for d in vectors.similarity_search(COLOURS[n], 1)] == [str(n)]
    assert len(vectors.similarity_search(COLOURS[0], 10)) == 2


def test_deleting_without_ids_deletes_what_came_through_langchain(vectors: KVPacketVectorStore):
    vectors.store.add(handbook())
    vectors.add_texts(COLOURS, ids=[str(n) for n in range(12)])
    assert vectors.delete()
    assert {d.id for d in vectors.store.documents()} == {d.id for d in handbook()}


def test_relevance_is_one_for_an_exact_match_and_falls_with_distance(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS)
    found = vectors.similarity_search_with_relevance_scores(COLOURS[4], 12)
    assert found[0][0].page_content == COLOURS[4]
    assert found[0][1] == pytest.approx(1.0, abs=1e-5)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    retriever = vectors.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.99999}
    )
    assert [d.page_content for d in retriever.invoke(COLOURS[4])] == [COLOURS[4]]
    assert type(found[0][1]) is float


def test_a_filter_comes_before_the_nearest(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS, metadatas=[{"n": n} for n in range(12)])
    vectors.add_texts(["Nothing of that kind at all."], metadatas=[{"n": 99}])
    retriever = vectors.as_retriever(search_kwargs={"k": 1, "filter": {"n": 99}})
    assert [d.metadata for d in retriever.invoke(COLOURS[0])] == [{"n": 99}]
    (document, _), *_ = vectors.similarity_search_with_score(COLOURS[0], filter=lambda m: m["n"] == 7)
    assert document.metadata == {"n": 7}
    varied = vectors.as_retriever(search_type="mmr", search_kwargs={"k": 3, "filter": {"n": [1, 2, 3]}})
    assert {d.metadata["n"] for d in varied.invoke("house")} == {1, 2, 3}


def test_mmr_asks_for_sensible_numbers(vectors: KVPacketVectorStore):
    assert vectors.max_marginal_relevance_search("house") == []
    vectors.add_texts(COLOURS)
    assert len(vectors.max_marginal_relevance_search("house", k=5, fetch_k=2)) == 5
    with pytest.raises(InputError, match="between 0 and 1"):
        vectors.max_marginal_relevance_search("house", lambda_mult=2)


def test_vectors_of_any_length_are_found_and_of_another_dimension_refused_naming_both(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS)
    vector = [1000 * number for number in vectors.embeddings.embed_query(COLOURS[3])]
    assert vectors.similarity_search_by_vector(vector, 1)[0].page_content == COLOURS[3]
    with pytest.raises(MismatchError, match=r"64 numbers.*gives 5"):
        vectors.similarity_search_by_vector([1.0] * 5)


def test_another_embedder_is_refused_by_name(tmp_path: Path, llama: PacketModel):
    def make(size: int) -> KVPacketVectorStore:
        return KVPacketVectorStore.from_texts(
            COLOURS[:2], DeterministicFakeEmbedding(size=size), folder=tmp_path / "kb", model=llama
        )

    made = make(8)
    assert made.embeddings.embed_query("a") == DeterministicFakeEmbedding(size=8).embed_query("a")
    made.store.close()
    with pytest.raises(MismatchError, match=r"8 numbers.*gives 9"):
        make(9)


def test_a_store_or_a_folder_is_needed(open_store: Callable[..., DocumentStore]):
    with pytest.raises(InputError, match="either a store, or a folder"):
        KVPacketVectorStore.from_texts(COLOURS)
    with pytest.raises(InputError, match="made with the embedder hash-64"):
        KVPacketVectorStore.from_texts(COLOURS, DeterministicFakeEmbedding(size=64), store=open_store())
    made = KVPacketVectorStore.from_texts(COLOURS, store=open_store(), ids=[str(n) for n in range(12)])
    assert made.get_by_ids(["3"])[0].page_content == COLOURS[3]


def test_chunks_of_the_stores_own_documents_are_found_under_their_ids(vectors: KVPacketVectorStore):
    vectors.store.add(handbook())
    (document,) = vectors.similarity_search("battery", 1)
    assert vectors.get_by_ids([document.id]) == [document]
    assert document.metadata in [{"part": name} for name in HANDBOOK]


@pytest.mark.parametrize("cleanup", ["incremental", "scoped_full", "full"])
def test_indexing_again_builds_and_deletes_nothing(vectors: KVPacketVectorStore, cleanup: Any):
    manager = InMemoryRecordManager("kvpacket")
    manager.create_schema()
    documents = [Document(text, metadata={"source": f"{n % 2}"}) for n, text in enumerate(COLOURS)]

    def run(given: list[Document]) -> dict[str, int]:
        result = index(
            given, manager, vectors, cleanup=cleanup, source_id_key="source", batch_size=50, key_encoder="sha256"
        )
        return dict(result)

    assert run(documents)["num_added"] == 12
    packets = vectors.store.info().packets
    assert run(documents) == {"num_added": 0, "num_updated": 0, "num_skipped": 12, "num_deleted": 0}
    assert run(documents[1:])["num_deleted"] == 1
    assert vectors.store.info().packets == packets - 1


def test_documents_of_the_vector_store_are_answered_from_packets(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS)
    found = vectors.as_retriever().invoke("colour 3")
    prompt = "\n\n".join(d.page_content for d in found) + "\n\nWhich colour?"
    told = ChatKVPacket(store=vectors.store, max_tokens=3).invoke(prompt).response_metadata["kvpacket"]
    assert len(told["hits"]) == 4
    assert told["packets_built"] <= 1  # the packet for the first place, at most


def test_threads_may_add_search_and_delete_at_once(vectors: KVPacketVectorStore):
    vectors.add_texts(COLOURS[:2], ids=["a", "b"])
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                name = f"{number}-{turn}"
                vectors.add_texts([f"Text {turn} of thread {number}."], ids=[name])
                assert vectors.get_by_ids([name])
                assert len(vectors.similarity_search(COLOURS[0], 2)) == 2
                vectors.delete([name])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {d.id for d in vectors.store.documents()} == {"a", "b"}


def test_documents_that_did_not_come_through_langchain_stay(vectors: KVPacketVectorStore):
    vectors.store.add(handbook())
    with pytest.raises(InputError, match="'battery' is a document of the store itself"):
        vectors.add_texts(["Something else in its place."], ids=["battery"])
    (found,) = vectors.similarity_search("battery", 1)
    assert vectors.delete(["colour"]) is False
    assert vectors.delete([found.id]) is False
    assert {d.id for d in vectors.store.documents()} == {d.id for d in handbook()}


def test_questions_are_embedded_as_questions_everywhere(tmp_path: Path, llama: PacketModel):
    class Asymmetric(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, 0.0] if "cat" in text else [0.0, 1.0] for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0][::-1]

    texts = ["A text about a cat.", "A text about a dog."]
    with DocumentStore.open(tmp_path / "kb", model=llama, embedder=LangChainEmbedder(Asymmetric())) as store:
        vectors = KVPacketVectorStore(store)
        vectors.add_texts(texts)
        for found in (
            vectors.similarity_search("dog", 1),
            vectors.max_marginal_relevance_search("dog", 1),
            KVPacketRetriever(store=store, k=1).invoke("dog"),
            KVPacketRetriever(store=store, k=1, search_type="mmr").invoke("dog"),
        ):
            assert [d.page_content for d in found] == texts[:1]
        assert [d.page_content for d, _ in vectors.similarity_search_with_score("cat", 1)] == texts[1:]


def test_indexing_in_batches_again_encodes_nothing_with_the_scoped_cleanup(vectors: KVPacketVectorStore):
    manager = InMemoryRecordManager("kvpacket")
    manager.create_schema()
    documents = [Document(text, metadata={"source": "one"}) for text in COLOURS]
    options: dict[str, Any] = {
        "cleanup": "scoped_full",
        "source_id_key": "source",
        "batch_size": 5,
        "key_encoder": "sha256",
    }
    index(documents, manager, vectors, **options)
    with encoding(vectors.store.model) as built:
        assert index(documents, manager, vectors, **options)["num_skipped"] == 12
    assert built == []


def test_names_of_langchain_embeddings_are_recorded():
    class Named(DeterministicFakeEmbedding):
        model: str = "small-1"

    assert LangChainEmbedder(Named(size=3)).name == "Named:small-1"
    assert LangChainEmbedder(Named(size=3), "mine").name == "mine"
    assert LangChainEmbedder(DeterministicFakeEmbedding(size=3)).name == "DeterministicFakeEmbedding"
