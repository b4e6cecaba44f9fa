"""`KVPacketVectorStore`: what users of other vector stores ran into."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from kvpacket_rag import matches
from kvpacket_rag.errors import DamagedError, InputError, MismatchError, NotFoundError
from kvpacket_rag.store.document_store import DocumentStore
from llama_index_kvpacket import KVPacketEmbedding, KVPacketVectorStore
from llama_index_kvpacket.filters import translated
from tests.conftest import handbook

COLOURS = [f"The house of number {n} is painted in colour {n}." for n in range(12)]


def node(n: int, embedding: KVPacketEmbedding, **metadata: Any) -> TextNode:
    made = TextNode(id_=f"n{n}", text=COLOURS[n], metadata={"n": n, **metadata})
    made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"doc{n % 3}")
    made.embedding = embedding.get_text_embedding(COLOURS[n])
    return made


@pytest.fixture
def filled(vectors: KVPacketVectorStore, embedding: KVPacketEmbedding) -> KVPacketVectorStore:
    vectors.add([node(n, embedding) for n in range(12)])
    return vectors


def ask(vectors: KVPacketVectorStore, embedding: KVPacketEmbedding, text: str, k: int = 3, **more: Any) -> list[str]:
    query = VectorStoreQuery(query_embedding=embedding.get_query_embedding(text), similarity_top_k=k, **more)
    return vectors.query(query).ids or []


def test_it_is_a_vector_store():
    assert BasePydanticVectorStore in KVPacketVectorStore.__mro__


def test_nodes_come_back_whole_with_a_real_similarity(filled: KVPacketVectorStore, embedding: KVPacketEmbedding):
    result = filled.query(
        VectorStoreQuery(query_embedding=embedding.get_query_embedding(COLOURS[4]), similarity_top_k=5)
    )
    assert result.ids[0] == "n4"
    assert result.similarities[0] == pytest.approx(1.0, abs=1e-5)
    assert result.similarities == sorted(result.similarities, reverse=True)
    (found,) = filled.get_nodes(["n4", "never"])
    assert (found.text, found.metadata, found.ref_doc_id) == (COLOURS[4], {"n": 4}, "doc1")
    assert found.hash == node(4, embedding).hash
    assert len(filled.get_nodes()) == 12
    assert [n.node_id for n in filled.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="n", value=3)]))]


def test_a_cutoff_keeps_the_nearest(vectors: KVPacketVectorStore, embedding: KVPacketEmbedding):
    nodes = [node(n, embedding) for n in range(5)]
    index = VectorStoreIndex(
        nodes, storage_context=StorageContext.from_defaults(vector_store=vectors), embed_model=embedding
    )
    found = index.as_retriever(similarity_top_k=5).retrieve(COLOURS[2])
    kept = SimilarityPostprocessor(similarity_cutoff=0.999).postprocess_nodes(found)
    assert [n.node_id for n in kept] == ["n2"]


def test_packets_are_made_of_what_the_model_reads(filled: KVPacketVectorStore, embedding: KVPacketEmbedding):
    chunks = {chunk.document: chunk.text for chunk in filled.client.chunks()}
    assert chunks["n3"] == node(3, embedding).get_content(MetadataMode.LLM) == f"n: 3\n\n{COLOURS[3]}"


def test_the_same_id_replaces_and_many_nodes_of_a_document_stay(filled, embedding):
    changed = node(3, embedding)
    changed.set_content("Something else stands here now.")
    filled.add([changed])
    assert len(filled.get_nodes()) == 12
    assert filled.get_nodes(["n3"])[0].text == "Something else stands here now."


def test_documents_that_did_not_come_through_llama_index_stay(vectors, embedding):
    vectors.client.add(handbook())
    clash = node(0, embedding)
    clash.id_ = "battery"
    with pytest.raises(InputError, match="'battery' is a document of the store itself"):
        vectors.add([clash])
    vectors.delete("battery")
    vectors.delete_nodes(["battery"])
    assert {d.id for d in vectors.client.documents()} == {d.id for d in handbook()}


def test_nodes_of_no_document_are_not_one_document(vectors, embedding):
    alone = node(0, embedding)
    alone.relationships = {}
    vectors.add([alone])
    vectors.delete("None")
    assert len(vectors.get_nodes()) == 1


def test_a_blank_node_is_left_out_and_the_others_are_kept(vectors, embedding):
    blank = TextNode(id_="blank", text=" \n ")
    blank.embedding = [1.0] * 64
    assert vectors.add([blank, node(1, embedding)]) == ["blank", "n1"]
    assert [n.node_id for n in vectors.get_nodes()] == ["n1"]


def test_deleting_by_document_node_and_filter(filled: KVPacketVectorStore, embedding: KVPacketEmbedding):
    filled.delete("doc1")
    filled.delete("doc1")
    assert {n.node_id for n in filled.get_nodes()} == {f"n{n}" for n in range(12) if n % 3 != 1}
    filled.delete_nodes(["n0", "never"])
    filled.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="n", value=8, operator=FilterOperator.GT)]))
    assert {n.node_id for n in filled.get_nodes()} == {"n2", "n3", "n5", "n6", "n8"}
    filled.delete_nodes(["n2", "n3"], MetadataFilters(filters=[MetadataFilter(key="n", value=3)]))
    assert {n.node_id for n in filled.get_nodes()} == {"n2", "n5", "n6", "n8"}
    with pytest.raises(InputError, match="clear"):
        filled.delete_nodes()
    filled.client.add(handbook())
    filled.clear()
    assert filled.get_nodes() == []
    assert len(filled.client.documents()) == 4  # not LlamaIndex's
    assert filled.client.info().packets == filled.client.info().chunks


async def test_async_does_the_same(vectors: KVPacketVectorStore, embedding: KVPacketEmbedding):
    assert await vectors.async_add([node(n, embedding) for n in range(6)]) == [f"n{n}" for n in range(6)]
    query = VectorStoreQuery(query_embedding=embedding.get_query_embedding(COLOURS[1]), similarity_top_k=1)
    assert (await vectors.aquery(query)).ids == ["n1"]
    await vectors.adelete("doc0")
    await vectors.adelete_nodes(["n1"])
    assert {n.node_id for n in await vectors.aget_nodes()} == {"n2", "n4", "n5"}
    await vectors.aclear()
    assert await vectors.aget_nodes() == []


def test_queries_by_document_node_filter_and_variety(filled: KVPacketVectorStore, embedding: KVPacketEmbedding):
    assert set(ask(filled, embedding, COLOURS[0], 9, doc_ids=["doc2"])) == {"n2", "n5", "n8", "n11"}
    assert set(ask(filled, embedding, COLOURS[0], 9, node_ids=["n1", "n2"])) == {"n1", "n2"}
    far = MetadataFilters(filters=[MetadataFilter(key="n", value=11)])
    assert ask(filled, embedding, COLOURS[0], 1, filters=far) == ["n11"]  # before the nearest are taken
    assert len(ask(filled, embedding, COLOURS[0], 3, mode=VectorStoreQueryMode.MMR)) == 3
    assert ask(filled, embedding, COLOURS[5], 1, mode="default") == ["n5"]
    with pytest.raises(InputError, match="default and mmr"):
        ask(filled, embedding, COLOURS[0], mode=VectorStoreQueryMode.HYBRID)
    with pytest.raises(InputError, match="no embedding"):
        filled.query(VectorStoreQuery(query_str="a"))
    with pytest.raises(InputError, match="at least 1"):
        ask(filled, embedding, COLOURS[0], 0)


def test_a_node_embedded_otherwise_is_refused_naming_both_and_leaves_nothing(filled, embedding):
    odd = node(1, embedding)
    odd.id_, odd.embedding = "odd", [1.0] * 5
    with pytest.raises(MismatchError, match=r"64 numbers.*gives 5"):
        filled.add([odd])
    assert len(filled.get_nodes()) == 12


OPERATORS = {
    "==": ({"a": 3}, 3, [2, "3", None]),
    "!=": ({"a": 3}, 4, [3]),
    ">": ({"a": 3}, 2, [3]),
    "<": ({"a": 3}, 4, [3]),
    ">=": ({"a": 3}, 3, [4]),
    "<=": ({"a": 3}, 3, [2]),
    "in": ({"a": "x"}, ["x", "y"], [["y"], ["z"]]),
    "nin": ({"a": "x"}, ["y"], [["x", "y"]]),
    "any": ({"a": ["x", "y"]}, ["y", "z"], [["z"]]),
    "all": ({"a": ["x", "y"]}, ["x", "y"], [["x", "z"]]),
    "text_match": ({"a": "A green lamp"}, "green", ["Green"]),
    "text_match_insensitive": ({"a": "A green lamp"}, "GREEN", ["blue"]),
    "contains": ({"a": ["x", "y"]}, "y", ["z"]),
    "is_empty": ({"a": []}, None, []),
}


@pytest.mark.parametrize("operator", list(FilterOperator), ids=[o.value for o in FilterOperator])
def test_every_filter_operator_holds_and_fails_where_it_should(operator: FilterOperator):
    metadata, value, others = OPERATORS[operator.value]

    def holds(wanted: Any, given: dict[str, Any]) -> bool:
        condition = MetadataFilter.model_construct(key="a", value=wanted, operator=operator)
        return matches(translated(MetadataFilters(filters=[condition])), given)

    assert holds(value, metadata)
    assert not any(holds(other, metadata) for other in others)
    assert holds(value, {}) == (operator in (FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY))


def test_filters_nest():
    def one(key: str, value: int) -> MetadataFilter:
        return MetadataFilter(key=key, value=value)

    either = MetadataFilters(filters=[one("a", 1), one("b", 2)], condition=FilterCondition.OR)
    neither = MetadataFilters(filters=[one("a", 1), one("b", 2)], condition=FilterCondition.NOT)
    nested = MetadataFilters(filters=[either, MetadataFilters(filters=[one("c", 3)], condition=FilterCondition.NOT)])
    assert matches(translated(either), {"a": 1})
    assert not matches(translated(neither), {"b": 2})
    assert matches(translated(neither), {})
    assert matches(translated(nested), {"b": 2})
    assert not matches(translated(nested), {"b": 2, "c": 3})
    for condition in FilterCondition:
        assert matches(translated(MetadataFilters(filters=[], condition=condition)), {"a": 1})


# -- ingestion --------------------------------------------------------------------------------------------------


def documents(version: str = "nine") -> list[Document]:
    return [
        Document(text=f"The battery of the lamp lasts {version} days. " * 3, id_="battery", metadata={"lang": "en"}),
        Document(text="The green one is made of glass.", id_="colour", metadata={"lang": "en"}),
    ]


def test_an_ingestion_pipeline_run_again_adds_nothing_and_an_update_replaces(vectors, embedding):
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=40, chunk_overlap=0), embedding],
        vector_store=vectors,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
    )
    pipeline.run(documents=documents())
    before = {n.node_id for n in vectors.get_nodes()}
    assert len(before) >= 2
    assert pipeline.run(documents=documents()) == []
    assert {n.node_id for n in vectors.get_nodes()} == before
    pipeline.run(documents=documents("eleven"))
    texts = [n.text for n in vectors.get_nodes()]
    assert any("eleven days" in text for text in texts)
    assert not any("nine days" in text for text in texts)
    assert vectors.client.info().packets == vectors.client.info().chunks


def test_refreshing_documents_of_an_index_updates_only_what_changed(vectors, embedding):
    context = StorageContext.from_defaults(vector_store=vectors)
    index = VectorStoreIndex.from_documents(
        documents(), storage_context=context, embed_model=embedding, store_nodes_override=True,
        transformations=[SentenceSplitter(chunk_size=40, chunk_overlap=0)],
    )  # fmt: skip
    assert index.refresh_ref_docs(documents()) == [False, False]
    assert index.refresh_ref_docs(documents("eleven")) == [True, False]
    texts = [n.text for n in vectors.get_nodes()]
    assert not any("nine days" in text for text in texts)
    assert any("eleven days" in text for text in texts)


@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
async def test_every_strategy_of_a_pipeline_ends_with_the_documents_of_the_last_run(vectors, embedding, strategy):
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=40, chunk_overlap=0), embedding],
        vector_store=vectors, docstore=SimpleDocumentStore(), docstore_strategy=strategy,
    )  # fmt: skip
    await pipeline.arun(documents=documents())
    await pipeline.arun(documents=documents())
    pipeline.run(documents=documents()[:1])
    sources = {n.ref_doc_id for n in vectors.get_nodes()}
    assert sources == ({"battery"} if strategy is DocstoreStrategy.UPSERTS_AND_DELETE else {"battery", "colour"})
    texts = [n.text for n in vectors.get_nodes()]
    assert len(texts) == len(set(texts))


def test_an_index_over_a_filled_store_takes_and_deletes_documents(vectors, embedding):
    index = VectorStoreIndex.from_vector_store(
        vectors, embed_model=embedding, transformations=[SentenceSplitter(chunk_size=40, chunk_overlap=0)]
    )
    for document in documents():
        index.insert(document)
    assert {n.ref_doc_id for n in vectors.get_nodes()} == {"battery", "colour"}
    index.delete_ref_doc("battery")
    assert {n.ref_doc_id for n in vectors.get_nodes()} == {"colour"}


# -- folders ----------------------------------------------------------------------------------------------------

RELOAD = """
import sys
sys.path.insert(0, sys.argv[3])
from tests.conftest import HashEmbedder, tiny_model
from llama_index.core import VectorStoreIndex
from llama_index_kvpacket import KVPacketEmbedding, KVPacketVectorStore, LlamaIndexEmbedder
embedding = KVPacketEmbedding(HashEmbedder())
vectors = KVPacketVectorStore.from_persist_dir(sys.argv[1], model=tiny_model(), embedder=LlamaIndexEmbedder(embedding))
index = VectorStoreIndex.from_vector_store(vectors, embed_model=embedding)
(found,) = index.as_retriever(similarity_top_k=1).retrieve(sys.argv[2])
print(found.node.node_id, vectors.client.info().packets)
"""


def test_what_was_persisted_is_there_in_a_fresh_process_whatever_the_path(
    open_store: Callable[..., DocumentStore], embedding: KVPacketEmbedding, tmp_path: Path
):
    from llama_index_kvpacket import LlamaIndexEmbedder

    vectors = KVPacketVectorStore(open_store("a kb with spaces, ümlauts", embedder=LlamaIndexEmbedder(embedding)))
    vectors.add([node(n, embedding) for n in range(4)])
    context = StorageContext.from_defaults(vector_store=vectors)
    folder = tmp_path / "persisted über here"
    context.persist(persist_dir=str(folder))
    with pytest.raises(AttributeError):  # not an empty store of LlamaIndex's own
        StorageContext.from_defaults(persist_dir=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(folder), COLOURS[2], str(Path(__file__).parents[2])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["n2", "4"]


def test_a_file_that_is_not_there_or_of_another_store_is_refused(tmp_path: Path):
    with pytest.raises(NotFoundError, match="Persist the storage context first"):
        KVPacketVectorStore.from_persist_dir(str(tmp_path))
    file = tmp_path / "default__vector_store.json"
    file.write_text('["other", "x"]')
    with pytest.raises(DamagedError, match="written by another"):
        KVPacketVectorStore.from_persist_dir(str(tmp_path))
    file.write_text('{"embedding_dict": {}}')
    with pytest.raises(DamagedError, match="written by another"):
        KVPacketVectorStore.from_persist_dir(str(tmp_path))
