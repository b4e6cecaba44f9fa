"""`KVPacketQueryEngine`: retriever, postprocessors and answers from packets, with what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from llama_index.core import ChatPromptTemplate, PromptTemplate, StorageContext, VectorStoreIndex
from llama_index.core import Document as LlamaDocument
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.postprocessor import MetadataReplacementPostProcessor, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from kvpacket_rag.answering.conversation import Passage
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore
from llama_index_kvpacket import (
    KVPacketEmbedding,
    KVPacketLLM,
    KVPacketQueryEngine,
    KVPacketRetriever,
    KVPacketSynthesizer,
    KVPacketVectorStore,
)
from tests.conftest import HANDBOOK, HashEmbedder
from tests.support.watching import ticking

QUESTION = "How long does the battery of the lamp last?"


class Reverse(BaseNodePostprocessor):
    """A reranker."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


@pytest.fixture
def engine(llm: KVPacketLLM, store: DocumentStore) -> KVPacketQueryEngine:
    return KVPacketQueryEngine.from_retriever(KVPacketRetriever(store, similarity_top_k=3), llm=llm)


def test_it_answers_from_packets_with_sources_and_cost(engine: KVPacketQueryEngine, store: DocumentStore):
    response = engine.query(QUESTION)
    expected = [hit.chunk.id for hit in store.search(QUESTION, 3)]
    assert [found.node.node_id for found in response.source_nodes] == expected
    told = response.metadata["kvpacket"]
    assert told["hits"] == expected
    assert told["missed"] == 0
    assert told["timings"]["first_token"] > 0
    assert response.metadata[expected[0]]["part"] in HANDBOOK
    assert response.response


def test_it_gives_the_answer_of_the_store_itself(store: DocumentStore, llm: KVPacketLLM):
    rag = RAG(store, k=2)
    engine = KVPacketQueryEngine.from_retriever(KVPacketRetriever(store, similarity_top_k=2), llm=llm, best_last=True)
    assert engine.query(QUESTION).response == rag.ask(QUESTION, config=_greedy(10)).text


def _greedy(tokens: int):
    from kvpacket_rag import GenerationConfig

    return GenerationConfig(max_new_tokens=tokens)


async def test_streams_and_async_give_the_same_and_tell_the_cost_at_their_end(llm: KVPacketLLM, store: DocumentStore):
    retriever = KVPacketRetriever(store, similarity_top_k=2)
    whole = KVPacketQueryEngine.from_retriever(retriever, llm=llm)
    text = whole.query(QUESTION).response
    assert (await whole.aquery(QUESTION)).response == text
    streaming = KVPacketQueryEngine.from_retriever(retriever, llm=llm, streaming=True)
    response = streaming.query(QUESTION)
    assert isinstance(response, StreamingResponse)
    assert "kvpacket" not in response.metadata
    assert "".join(response.response_gen).strip() == text
    assert len(response.metadata["kvpacket"]["hits"]) == 2
    later = await streaming.aquery(QUESTION)
    assert isinstance(later, AsyncStreamingResponse)
    assert "".join([piece async for piece in later.async_response_gen()]).strip() == text
    assert later.metadata["kvpacket"]["answer_tokens"] > 0


async def test_without_nodes_there_is_an_empty_answer_of_the_right_kind(llm: KVPacketLLM, store: DocumentStore):
    nothing = KVPacketRetriever(store, filters=MetadataFilters(filters=[MetadataFilter(key="part", value="none")]))
    assert KVPacketQueryEngine.from_retriever(nothing, llm=llm).query(QUESTION).response == "Empty Response"
    streaming = KVPacketQueryEngine.from_retriever(nothing, llm=llm, streaming=True, empty_response="Nothing found.")
    assert "".join(streaming.query(QUESTION).response_gen) == "Nothing found."
    later = await streaming.aquery(QUESTION)
    assert "".join([piece async for piece in later.async_response_gen()]) == "Nothing found."


def test_postprocessors_are_honoured_and_reordered_nodes_keep_their_packets(llm: KVPacketLLM, store: DocumentStore):
    retriever = KVPacketRetriever(store, similarity_top_k=3)
    engine = KVPacketQueryEngine.from_retriever(retriever, llm=llm, node_postprocessors=[Reverse()])
    expected = [hit.chunk.id for hit in store.search(QUESTION, 3)][::-1]
    response = engine.query(QUESTION)
    assert [found.node.node_id for found in response.source_nodes] == expected
    assert response.metadata["kvpacket"]["hits"] == expected
    cut = KVPacketQueryEngine.from_retriever(
        retriever, llm=llm, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=2.0)]
    )
    assert cut.query(QUESTION).response == "Empty Response"


def test_a_node_whose_text_is_replaced_is_read_as_text_and_said_to_be(llm: KVPacketLLM, store: DocumentStore):
    class Window(BaseNodePostprocessor):
        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
        ) -> list[NodeWithScore]:
            nodes[1].node.metadata["window"] = "A wider piece of text around the second node, as stored beside it."
            nodes[1].node.excluded_llm_metadata_keys.append("window")
            return nodes

    engine = KVPacketQueryEngine.from_retriever(
        KVPacketRetriever(store, similarity_top_k=3),
        llm=llm,
        node_postprocessors=[Window(), MetadataReplacementPostProcessor(target_metadata_key="window")],
    )
    told = engine.query(QUESTION).metadata["kvpacket"]
    expected = [hit.chunk.id for hit in store.search(QUESTION, 3)]
    assert told["hits"] == [expected[0], expected[2]]
    assert told["missed"] == 1


def test_a_prompt_of_ones_own_is_used_and_a_node_cannot_fill_its_places(store: DocumentStore, llm: KVPacketLLM):
    template = PromptTemplate("Context: {context_str}\n---\nAnswer {query_str} in one word.")
    synthesizer = KVPacketSynthesizer(llm, text_qa_template=template)
    odd = TextNode(text="A text with {query_str} and {context_str} in it, which stays as it is.")
    nodes = [NodeWithScore(node=odd), NodeWithScore(node=TextNode(text=store.chunks()[0].text))]
    (turn,) = synthesizer._turns("what?", [found.node.text for found in nodes])
    joined = "".join(part if isinstance(part, str) else part.text for part in turn.content)
    assert joined == f"Context: {odd.text}\n\n{store.chunks()[0].text}\n---\nAnswer what? in one word."
    told = synthesizer.synthesize("what?", nodes).metadata["kvpacket"]
    assert (told["missed"], len(told["hits"])) == (1, 1)
    assert synthesizer.get_prompts() == {"text_qa_template": template}
    other = PromptTemplate("{context_str} {query_str}")
    chat = KVPacketSynthesizer(
        llm,
        text_qa_template=ChatPromptTemplate.from_messages(
            [("system", "Be brief."), ("user", "{context_str}\nQ: {query_str}")]
        ),
    )
    system, asked = chat._turns("what?", ["Some text."])
    assert (system.role, system.content) == ("system", ("Be brief.",))
    assert (asked.role, asked.content) == ("user", (Passage("Some text."), "\nQ: what?"))
    with pytest.raises(InputError, match=r"no {context_str}"):
        KVPacketSynthesizer(llm, text_qa_template=PromptTemplate("{context} {query_str}"))._turns("a", ["b"])
    synthesizer.update_prompts({"text_qa_template": other})
    assert synthesizer.get_prompts() == {"text_qa_template": other}


def test_an_engine_over_an_index_you_have_takes_its_texts_from_packets(
    open_store: Callable[..., DocumentStore], embedding: KVPacketEmbedding
):
    store = open_store()
    index = VectorStoreIndex(
        [TextNode(text=text, metadata={"file": f"{name}.txt"}) for name, text in HANDBOOK.items()],
        embed_model=embedding,
    )
    engine = KVPacketQueryEngine.from_index(index, store=store, similarity_top_k=2)
    first = engine.query(QUESTION)
    assert len(first.metadata["kvpacket"]["hits"]) == 2
    assert [f.node.node_id for f in first.source_nodes] == [
        f.node.node_id for f in index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    ]
    chunks = store.info().chunks
    assert chunks == 2
    assert engine.query(QUESTION).response == first.response
    assert store.info().chunks == chunks
    assert all(chunk.text.startswith("file: ") for chunk in store.chunks())  # what the model reads


def test_an_index_on_the_packet_vector_store_is_answered_from_its_packets(vectors: KVPacketVectorStore, embedding):
    context = StorageContext.from_defaults(vector_store=vectors)
    nodes = [TextNode(text=text) for text in HANDBOOK.values()]
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
    engine = KVPacketQueryEngine.from_index(index, store=vectors.client, similarity_top_k=3)
    told = engine.query(QUESTION).metadata["kvpacket"]
    assert len(told["hits"]) == 3
    assert told["packets_built"] == 0
    assert vectors.client.info().documents == 4  # nothing was added for the question


def test_an_engine_over_documents_splits_and_keeps_them(open_store: Callable[..., DocumentStore]):
    store = open_store()
    documents = [LlamaDocument(text=text, id_=name, metadata={"part": name}) for name, text in HANDBOOK.items()]
    engine = KVPacketQueryEngine.from_documents(documents, store=store, similarity_top_k=2)
    assert len(engine.query(QUESTION).metadata["kvpacket"]["hits"]) == 2
    assert {document.id for document in store.documents()} == set(HANDBOOK)
    packets = store.info().packets
    KVPacketQueryEngine.from_documents(documents, store=store)
    assert store.info().packets == packets
    named = KVPacketRetriever(store, similarity_top_k=1).retrieve(QUESTION)[0].node.metadata
    assert named["part"] in HANDBOOK
    assert "source" not in named  # nothing made up


def test_documents_without_ids_of_their_own_are_known_again_and_blank_ones_left_out(open_store):
    store = open_store()
    for _ in range(2):
        documents = [LlamaDocument(text=text, metadata={"title": "Mine"}) for text in [*HANDBOOK.values(), " "]]
        engine = KVPacketQueryEngine.from_documents([*documents, documents[0]], store=store)
    assert store.info().documents == len(HANDBOOK)
    assert engine.query(QUESTION).source_nodes[0].node.metadata["title"] == "Mine"


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.TREE_SUMMARIZE, ResponseMode.SIMPLE_SUMMARIZE])
def test_other_synthesizers_with_our_model_find_the_packets_too(vectors: KVPacketVectorStore, embedding, mode):
    nodes = [TextNode(text=f"  {text}\n") for text in HANDBOOK.values()]
    index = VectorStoreIndex(
        nodes, storage_context=StorageContext.from_defaults(vector_store=vectors), embed_model=embedding
    )
    llm = KVPacketLLM(store=vectors.client, max_tokens=4)
    seen: list[int] = []
    original = KVPacketLLM.converse

    def noted(self, turns, **settings):
        stream = original(self, turns, **settings)
        seen.append(len(stream.answer.chunks))
        return stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVPacketLLM, "converse", noted)
        index.as_query_engine(llm=llm, similarity_top_k=3, response_mode=mode).query(QUESTION)
    assert sum(seen) == 3


def test_options_that_would_have_no_effect_are_refused(open_store, store: DocumentStore, llm: KVPacketLLM, embedding):
    index = VectorStoreIndex([TextNode(text="Some text of a node.")], embed_model=embedding)
    for options in ({"filters": MetadataFilters(filters=[])}, {"similarity_top_k": 1}):
        with pytest.raises(InputError, match="on the base retriever"):
            KVPacketRetriever(store, base_retriever=index.as_retriever(), **options)
    with pytest.raises(InputError, match="Give both the same store"):
        KVPacketQueryEngine.from_retriever(KVPacketRetriever(open_store("other")), llm=llm)


def test_an_index_with_an_embedding_model_of_its_own_never_asks_the_stores(open_store, embedding: KVPacketEmbedding):
    class Refuses(HashEmbedder):
        asked: list[str] = []  # noqa: RUF012

        def embed(self, texts: list[str]) -> list[list[float]]:
            self.asked.extend(texts)
            return super().embed(texts)

    store = open_store(embedder=Refuses())
    index = VectorStoreIndex([TextNode(text=text) for text in HANDBOOK.values()], embed_model=embedding)
    engine = KVPacketQueryEngine.from_index(index, store=store, similarity_top_k=1)
    engine.query(QUESTION)
    Refuses.asked.clear()
    engine.query("What colour is the lamp sold in?")
    engine.query("What do spare shades cost?")
    assert Refuses.asked == []


def test_a_model_or_a_store_is_needed(llm: KVPacketLLM, store: DocumentStore, embedding: KVPacketEmbedding):
    index = VectorStoreIndex([TextNode(text="Some text of a node.")], embed_model=embedding)
    with pytest.raises(InputError, match="so that there are packets"):
        KVPacketQueryEngine.from_index(index)
    with pytest.raises(InputError, match="either the model or the store"):
        KVPacketQueryEngine.from_index(index, llm=llm, store=store)
    assert KVPacketQueryEngine.from_retriever(KVPacketRetriever(store)).query(QUESTION).metadata["kvpacket"]["hits"]


def test_an_embedding_given_with_the_question_is_used(store: DocumentStore, embedding: KVPacketEmbedding):
    vector = embedding.get_query_embedding(store.chunks()[2].text)
    (found,) = KVPacketRetriever(store, similarity_top_k=1).retrieve(QueryBundle("something else", embedding=vector))
    assert found.node.node_id == store.chunks()[2].id
    assert found.score == pytest.approx(1.0, abs=1e-5)


async def test_ten_queries_at_once_leave_the_event_loop_free(engine: KVPacketQueryEngine):
    expected = engine.query(QUESTION).response
    async with ticking() as late:
        found = await asyncio.gather(*(engine.aquery(QUESTION) for _ in range(10)))
    assert [response.response for response in found] == [expected] * 10
    assert max(late) < 0.4  # a busy machine may be late by itself


def test_long_metadata_that_the_model_does_not_read_changes_no_packet(store: DocumentStore, llm: KVPacketLLM):
    (found,) = KVPacketRetriever(store, similarity_top_k=1).retrieve(QUESTION)
    found.node.metadata["notes"] = "x" * 5000
    found.node.excluded_llm_metadata_keys.append("notes")
    told = KVPacketSynthesizer(llm).synthesize(QUESTION, [found]).metadata["kvpacket"]
    assert told["hits"] == [found.node.node_id]
