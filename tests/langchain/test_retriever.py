"""`KVPacketRetriever`: its own search, or any other retriever's results with a packet for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda

from kvpacket_rag import Document as StoredDocument
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore
from langchain_kvpacket import ChatKVPacket, KVPacketRetriever
from tests.conftest import HANDBOOK, HashEmbedder, handbook
from tests.support.watching import encoding

QUESTION = "How long does the battery of the lamp last?"


class Fixed(BaseRetriever):
    """A retriever the user already has: returns what it was given, with ids of its own or none."""

    documents: list[Document]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return list(self.documents)


class DropsIds(BaseDocumentCompressor):
    """A reranker that makes new documents without ids, as some do."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        ranked = sorted(documents, key=lambda d: d.page_content)
        return [Document(d.page_content, metadata={"relevance_score": 0.5}) for d in ranked]


def test_documents_carry_id_and_reference_as_plain_json(store: DocumentStore):
    documents = KVPacketRetriever(store=store, k=2).invoke(QUESTION)
    assert [d.id for d in documents] == [hit.chunk.id for hit in store.search(QUESTION, 2)]
    for document in documents:
        named = json.loads(json.dumps(document.metadata))["kvpacket"]
        assert named["id"] == document.id
        assert len(named["sha256"]) == 64
        assert document.metadata["part"] in HANDBOOK


def test_k_may_be_given_at_call_time_bound_or_configured(store: DocumentStore):
    retriever = KVPacketRetriever(store=store, k=3)
    assert len(retriever.invoke(QUESTION)) == 3
    assert len(retriever.invoke(QUESTION, k=1)) == 1
    assert len(retriever.bind(k=2).invoke(QUESTION)) == 2
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert len(configurable.with_config(configurable={"k": 4}).invoke(QUESTION)) == 4
    with pytest.raises(ValueError, match="k"):
        KVPacketRetriever(store=store, k=0)


def test_a_filter_is_applied_before_the_nearest_are_taken(open_store: Callable[..., DocumentStore]):
    store = open_store()
    store.add(StoredDocument(f"The battery lasts {n} days in lamp number {n}.", metadata={"n": n}) for n in range(60))
    store.add([StoredDocument("Completely different words here.", id="far", metadata={"n": -1, "lang": "en"})])
    retriever = KVPacketRetriever(store=store, k=2, filter={"lang": "en"})
    assert [d.metadata["n"] for d in retriever.invoke(QUESTION)] == [-1]
    assert [d.metadata["n"] for d in retriever.invoke(QUESTION, filter={"n": [5, 6]}, k=9)] in ([5, 6], [6, 5])
    late = KVPacketRetriever(store=store, filter=lambda metadata: metadata["n"] > 57)
    assert {d.metadata["n"] for d in late.invoke(QUESTION)} == {58, 59}


def test_a_threshold_keeps_what_is_relevant_and_an_exact_match_is_one(store: DocumentStore):
    text = store.chunks()[0].text
    exact = KVPacketRetriever(store=store, search_type="similarity_score_threshold", score_threshold=0.999, k=4)
    assert [d.page_content for d in exact.invoke(text)] == [text]
    everything = KVPacketRetriever(store=store, search_type="similarity_score_threshold", score_threshold=0.0, k=4)
    assert len(everything.invoke(text)) == 4
    with pytest.raises(ValueError, match="search_type"):
        KVPacketRetriever(store=store, search_type="magic")


def test_mmr_prefers_variety(open_store: Callable[..., DocumentStore]):
    store = open_store()
    same = [f"The battery lasts nine days{'.' * n}" for n in range(1, 4)]
    store.add([StoredDocument(text) for text in [*same, "The battery is blue and sold in pairs."]])
    nearest = KVPacketRetriever(store=store, k=2).invoke("The battery lasts nine days")
    varied = KVPacketRetriever(store=store, k=2, search_type="mmr", lambda_mult=0.1).invoke(
        "The battery lasts nine days"
    )
    assert {d.page_content for d in nearest} < set(same)
    assert varied[1].page_content == "The battery is blue and sold in pairs."


async def test_async_equals_sync_and_many_may_ask_at_once(store: DocumentStore):
    retriever = KVPacketRetriever(store=store, k=2)
    expected = retriever.invoke(QUESTION)
    assert await retriever.ainvoke(QUESTION) == expected
    found = await asyncio.gather(*(retriever.ainvoke(QUESTION) for _ in range(20)))
    assert all(documents == expected for documents in found)
    assert await retriever.abatch([QUESTION] * 50) == [expected] * 50


def test_metadata_of_the_users_own_wins_over_the_stores(open_store: Callable[..., DocumentStore]):
    store = open_store()
    store.add([StoredDocument("A text with metadata of its own.", metadata={"source": "https://x", "title": "Mine"})])
    (document,) = KVPacketRetriever(store=store).invoke("text")
    assert (document.metadata["source"], document.metadata["title"]) == ("https://x", "Mine")


# -- over another retriever -------------------------------------------------------------------------------------

FOREIGN = [
    Document("The keeper of the lighthouse is called Runa Vik.", id="a", metadata={"source": "x.txt", "n": 1}),
    Document("The tower is 31 metres high and painted white.", metadata={"source": "y.txt"}),
]


def test_texts_of_another_retriever_get_a_packet_once_and_keep_what_they_are(open_store: Callable[..., DocumentStore]):
    store = open_store()
    base = Fixed(documents=FOREIGN)
    retriever = KVPacketRetriever(base_retriever=base, store=store)
    documents = retriever.invoke("Who keeps it?")
    assert [d.page_content for d in documents] == [d.page_content for d in FOREIGN]
    assert [d.metadata["source"] for d in documents] == ["x.txt", "y.txt"]
    assert documents[0].id == "a"
    assert "kvpacket" not in FOREIGN[0].metadata  # the user's own documents are not touched
    packets = store.info().packets
    assert packets == store.info().chunks == 2
    again = retriever.invoke("Who keeps it?")
    assert again == documents
    assert store.info().packets == packets

    told = (
        ChatKVPacket(store=store, max_tokens=4)
        .invoke("\n\n".join(d.page_content for d in documents) + "\n\nWho?")
        .response_metadata["kvpacket"]
    )
    assert told["hits"] == [d.metadata["kvpacket"]["id"] for d in documents]


async def test_async_asks_the_other_retriever_asynchronously(open_store: Callable[..., DocumentStore]):
    class OnlyAsync(Fixed):
        def _get_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
            raise AssertionError("asked synchronously")

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any, **kwargs: Any) -> list[Document]:
            return list(self.documents)

    retriever = KVPacketRetriever(base_retriever=OnlyAsync(documents=FOREIGN), store=open_store())
    assert next(d.id for d in await retriever.ainvoke("Who?")) == "a"


def test_what_the_other_retriever_finds_is_cut_only_if_k_is_given(open_store: Callable[..., DocumentStore]):
    store = open_store()
    many = [Document(f"Text number {n} of the other retriever.") for n in range(9)]
    assert len(KVPacketRetriever(base_retriever=Fixed(documents=many), store=store).invoke("a")) == 9
    assert len(KVPacketRetriever(base_retriever=Fixed(documents=many), store=store, k=2).invoke("a")) == 2
    assert len(KVPacketRetriever(base_retriever=Fixed(documents=many), store=store).invoke("a", k=3)) == 3


def test_texts_that_can_have_no_packet_stay_text(open_store: Callable[..., DocumentStore]):
    store = open_store()
    odd = [Document("   "), Document("x" * 5000), Document("A text that can have one.")]
    documents = KVPacketRetriever(base_retriever=Fixed(documents=odd), store=store).invoke("a")
    assert ["kvpacket" in d.metadata for d in documents] == [False, False, True]


def test_a_reranker_that_drops_ids_and_metadata_does_no_harm_in_front_or_behind(store: DocumentStore):
    from langchain_classic.retrievers import ContextualCompressionRetriever

    inner = KVPacketRetriever(store=store, k=3)
    behind = ContextualCompressionRetriever(base_retriever=inner, base_compressor=DropsIds())
    ranked = behind.invoke(QUESTION)
    assert all(d.id is None for d in ranked)
    told = (
        ChatKVPacket(store=store, max_tokens=4)
        .invoke("\n\n".join(d.page_content for d in ranked) + "\n\nWell?")
        .response_metadata["kvpacket"]
    )
    assert len(told["hits"]) == 3

    front = KVPacketRetriever(base_retriever=behind, store=store)
    before = store.info().chunks
    found = front.invoke(QUESTION)
    assert [d.metadata["kvpacket"]["id"] for d in found] == told["hits"]
    assert store.info().chunks == before  # their texts were known


async def test_a_filter_goes_to_the_retriever_that_does_the_search_or_is_refused(open_store):
    from langchain_core.vectorstores import InMemoryVectorStore

    from langchain_kvpacket import KVPacketEmbeddings

    vectors = InMemoryVectorStore(KVPacketEmbeddings(HashEmbedder()))
    tenants = [Document(f"Text {n} of tenant {t}.", metadata={"t": t}) for n in range(3) for t in "ab"]
    vectors.add_documents(tenants)
    retriever = KVPacketRetriever(base_retriever=vectors.as_retriever(search_kwargs={"k": 6}), store=open_store())
    only = {"filter": lambda document: document.metadata["t"] == "b"}
    found = retriever.invoke("text", **only)
    assert {d.metadata["t"] for d in found} == {"b"}
    assert await retriever.ainvoke("text", **only) == found
    for setting in ({"filter": {"t": "b"}}, {"search_type": "mmr"}, {"score_threshold": 0.5}):
        with pytest.raises(ValueError, match="on the base retriever, which does the search"):
            KVPacketRetriever(base_retriever=vectors.as_retriever(), store=retriever.store, **setting)


def test_bound_configured_and_chained_retrievers_are_retrievers_too(open_store: Callable[..., DocumentStore]):
    base, store = Fixed(documents=FOREIGN), open_store()
    for inner in (base.with_config(tags=["x"]), base.bind(), base | RunnableLambda(lambda found: found[::-1])):
        assert len(KVPacketRetriever(base_retriever=inner, store=store).invoke("a")) == 2


def test_adopted_texts_are_found_by_their_text_alone_and_encoded_once(open_store: Callable[..., DocumentStore]):
    store = open_store()
    store.add(handbook())
    before = store.info()
    retriever = KVPacketRetriever(base_retriever=Fixed(documents=FOREIGN), store=store)
    with encoding(store.model) as built:
        retriever.batch(["Who?"] * 8)
    assert sum(built) == 2
    assert store.info().packets == before.packets + 2
    assert all(FOREIGN[0].page_content != d.page_content for d in KVPacketRetriever(store=store, k=9).invoke("keeper"))
    assert len(store.find(FOREIGN[0].page_content)) == 1
    strict = KVPacketRetriever(store=store, k=9, filter=lambda metadata: metadata["part"] == "care")
    assert {d.metadata["part"] for d in strict.invoke("lamp")} == {"care"}  # never asked about adopted texts
    assert store.verify().clean


def test_texts_that_a_tokenizer_reads_alike_are_told_apart(open_store: Callable[..., DocumentStore]):
    store = open_store()
    alike = [Document("An unknown letter here: ж."), Document("An unknown letter here: щ.")]
    found = KVPacketRetriever(base_retriever=Fixed(documents=alike), store=store).invoke("a")
    assert len({d.metadata["kvpacket"]["id"] for d in found}) == 2


def test_k_below_one_is_refused(store: DocumentStore):
    base = KVPacketRetriever(base_retriever=Fixed(documents=FOREIGN), store=store)
    for k in (0, -1):
        for retriever in (KVPacketRetriever(store=store), base):
            with pytest.raises(InputError, match="at least 1"):
                retriever.invoke("a", k=k)


def test_a_text_removed_from_the_store_comes_back_when_the_other_retriever_finds_it(open_store):
    store = open_store()
    retriever = KVPacketRetriever(base_retriever=Fixed(documents=FOREIGN[:1]), store=store)
    first = retriever.invoke("Who?")
    store.remove(store.documents()[0].id)
    assert store.info().chunks == 0
    assert retriever.invoke("Who?") == first


def test_adding_the_same_documents_again_changes_nothing(store: DocumentStore):
    before = KVPacketRetriever(store=store, k=4).invoke(QUESTION)
    assert store.add(handbook()).unchanged == len(HANDBOOK)
    assert KVPacketRetriever(store=store, k=4).invoke(QUESTION) == before
