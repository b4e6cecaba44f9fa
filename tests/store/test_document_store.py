"""Documents go in whole or not at all; equal text is stored once; what is found is what is there."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.engine.anchors import anchor_ids, encode_in_place
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError, MismatchError, NotFoundError
from kvpacket_rag.packets.adapter import Adapter, AdapterCard
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HANDBOOK, HashEmbedder, blob_bytes, handbook, tiny_model


def test_adding_builds_a_packet_for_every_chunk(store):
    info = store.info()
    assert info.documents == len(HANDBOOK)
    assert info.chunks == info.packets == len(blob_bytes(store)) > len(HANDBOOK)
    assert [d.id for d in store.documents()] == sorted(HANDBOOK)


def test_adding_again_builds_nothing(store, monkeypatch):
    before = blob_bytes(store)
    monkeypatch.setattr(PacketModel, "_encode_batch", None)
    report = store.add(handbook())
    assert (report.unchanged, report.added, report.packets_built) == (len(HANDBOOK), 0, 0)
    assert blob_bytes(store) == before


def test_a_changed_document_replaces_the_old_one_and_keeps_equal_chunks(store):
    old = {hit.chunk.id for hit in store.search("battery blue cable", k=20) if hit.chunk.document == "battery"}
    first, second = HANDBOOK["battery"].split(". ", 1)
    report = store.add([Document(f"{first}. But the red one lasts four weeks and is heavy.", id="battery")])
    assert (report.updated, report.added) == (1, 0)
    texts = [hit.chunk.text for hit in store.search("battery lamp", k=20) if hit.chunk.document == "battery"]
    assert any("red one" in text for text in texts)
    assert not any(second in text for text in texts)
    new = {hit.chunk.id for hit in store.search("battery lamp", k=20) if hit.chunk.document == "battery"}
    assert len(old & new) == 1  # the first sentence is a chunk of its own and keeps its name
    assert store.verify().clean


def test_equal_chunks_in_two_documents_share_one_packet(store):
    packets = store.info().packets
    store.add([Document(HANDBOOK["price"], id="copy")])
    assert store.info().packets == packets
    store.remove("price")
    assert store.info().packets == packets
    assert store.packets([hit.chunk for hit in store.search("crowns", k=2)]).built == 0
    store.remove("copy")
    assert store.info().packets < packets
    assert len(blob_bytes(store)) == store.info().packets
    assert store.verify().clean


def test_a_removed_document_is_not_found(store):
    store.remove("price")
    assert all(hit.chunk.document != "price" for hit in store.search("crowns", k=20))
    with pytest.raises(NotFoundError, match="no document 'price'"):
        store.remove("price")
    with pytest.raises(NotFoundError, match="Did you mean 'colour'"):
        store.remove("color")


def test_a_chunk_knows_its_place(store):
    for hit in store.search("lamp", k=20):
        text = HANDBOOK[hit.chunk.document]
        assert text[hit.chunk.start : hit.chunk.stop] == hit.chunk.text


def test_words_are_never_split(open_store):
    words = [f"word{n:03d}" for n in range(120)]
    store = open_store(chunk_tokens=20)
    store.add([Document(" ".join(words), id="words")])
    chunks = [hit.chunk for hit in store.search("word", k=200)]
    assert sorted(word for chunk in chunks for word in chunk.text.split()) == words
    assert all(len(chunk.token_ids) <= 20 + 2 for chunk in chunks)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"part": "care"}, {"care"}),
        ({"part": ["care", "price"]}, {"care", "price"}),
        ({"part": "care", "lang": "en"}, {"care"}),
        ({"part": "none"}, set()),
        (lambda metadata: metadata["part"].startswith("c"), {"care", "colour"}),
    ],
    ids=["value", "any of", "two keys", "none", "function"],
)
def test_filters_come_before_the_nearest(open_store, filter, expected):
    store = open_store()
    store.add(handbook(lang="en"))
    store.add(
        [Document(f"battery number {n} lasts nine days", id=f"noise{n}", metadata={"part": "x"}) for n in range(30)]
    )
    hits = store.search("how long does the battery last", k=4, filter=filter)
    assert {hit.chunk.document for hit in hits} == expected


def test_k_beyond_the_store_gives_all_and_k_below_one_is_refused(store):
    assert len(store.search("lamp", k=1000)) == store.info().chunks
    for k in (0, -3):
        with pytest.raises(InputError, match=f"k must be at least 1, got {k}"):
            store.search("lamp", k=k)


def test_scores_fall_and_an_exact_match_is_one(store):
    hits = store.search(store.search("lamp", k=1)[0].chunk.text, k=5)
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_an_empty_store_finds_nothing(open_store):
    assert open_store().search("anything") == []


def test_metadata_and_places_come_back_as_given(open_store):
    store = open_store()
    metadata = {"n": 1, "list": [1, "two"], "nested": {"ü": None}}
    store.add([Document("some text", id="ü/é.txt", title="T", source="/x y/é.txt", metadata=metadata)])
    (hit,) = store.search("text")
    assert (hit.metadata, hit.title, hit.source, hit.chunk.document) == (metadata, "T", "/x y/é.txt", "ü/é.txt")


def test_a_store_is_reopened_as_it_was(open_store, store):
    settings, found = store.settings, [h.chunk.id for h in store.search("lamp")]
    store.close()
    again = open_store()
    assert again.settings == settings
    assert [h.chunk.id for h in again.search("lamp")] == found


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"chunk_tokens": 61}, "chunk_tokens"),
        ({"storage": "float16"}, "storage"),
        ({"anchor": "none"}, "anchor"),
    ],
)
def test_another_setting_is_refused_by_name(open_store, store, changed, field):
    with pytest.raises(MismatchError) as raised:
        open_store(**changed)
    assert raised.value.field == field
    assert repr(raised.value.expected) in str(raised.value)
    assert repr(raised.value.found) in str(raised.value)


@pytest.mark.parametrize(("other", "field"), [(("llama", 1), "weights"), (("qwen2", 0), "model")])
def test_another_model_is_refused_by_name(open_store, store, other, field):
    with pytest.raises(MismatchError, match=f"built with tiny-llama, the model given is tiny-{other[0]}") as raised:
        open_store(model=tiny_model(*other))
    assert raised.value.field == field


def test_an_embedder_of_another_length_is_refused_by_name(open_store, store):
    class Longer(HashEmbedder):
        dimension = 65

    wrong = open_store(embedder=Longer())
    with pytest.raises(MismatchError, match="vectors of 64 numbers, the embedder hash-64 gives 65"):
        wrong.search("lamp")
    with pytest.raises(MismatchError, match="64"):
        wrong.add([Document("x", id="x")])
    assert store.info().documents == len(HANDBOOK)


def test_an_embedder_of_another_name_is_refused(open_store, store):
    class Other(HashEmbedder):
        name = "other"

    with pytest.raises(MismatchError, match="embedder 'hash-64', now 'other'"):
        open_store(embedder=Other())


def test_the_first_place_may_have_an_anchor_of_its_own_built_on_demand(open_store):
    store = open_store(first_anchor=Anchor.OPENING)
    store.add(handbook())
    chunks = [hit.chunk for hit in store.search("lamp", k=3)]
    loaded = store.packets(chunks)
    assert loaded.built == 1
    assert loaded.packets[0].base_position < loaded.packets[1].base_position
    assert store.packets(chunks).built == 0
    assert store.packets(chunks[::-1]).built == 1
    assert store.verify().clean
    store.remove(chunks[0].document)
    assert store.verify().clean


def test_every_anchor_kind_makes_a_store(open_store):
    model = tiny_model(adapter=Adapter.of({"anchor": torch.ones(3, 64)}))
    for anchor in set(Anchor) - {Anchor.CORPUS}:
        store = open_store(f"kb-{anchor}", anchor=anchor, model=model)
        store.add(handbook())
        assert store.packets([store.search("lamp")[0].chunk]).built == 0


def test_a_paragraph_moved_to_another_document_keeps_its_packet(store):
    shared = HANDBOOK["price"]
    store.add([Document("Something else entirely now.", id="price"), Document(shared, id="moved")])
    hits = [hit.chunk for hit in store.search("crowns", k=20) if hit.chunk.document == "moved"]
    assert hits
    assert store.info().packets == store.info().chunks
    assert store.verify().without_packet == 0


def test_two_documents_of_one_id_in_one_call_are_refused(store):
    with pytest.raises(InputError, match="Two documents have the id 'same'"):
        store.add([Document("one", id="same"), Document("two", id="same")])


def test_a_failed_first_add_fixes_no_settings(open_store, tmp_path):
    with pytest.raises(InputError, match="at least 8, got 4"):
        open_store(chunk_tokens=4)
    too_long = open_store(chunk_tokens=9000)
    with pytest.raises(InputError, match="do not fit the 8192 positions"):
        too_long.add(handbook())

    class Failing(HashEmbedder):
        name = "failing"

        def embed(self, texts):
            if len(texts) > 1:
                raise RuntimeError("no")
            return super().embed(texts)

    with pytest.raises(RuntimeError):
        open_store(embedder=Failing()).add(handbook())
    assert open_store(chunk_tokens=61).add(handbook()).added == len(HANDBOOK)


def test_a_store_that_another_process_began_otherwise_is_not_added_to(open_store):
    late, first = open_store(chunk_tokens=30), open_store()

    def beaten(state):
        if state.chunks == 1:
            first.add(handbook())

    with pytest.raises(MismatchError, match="chunk_tokens 60, now 30"):
        late.add([Document("A late document.", id="late")], progress=beaten)
    assert {d.id for d in first.documents()} == set(HANDBOOK)
    assert len(blob_bytes(first)) == first.info().packets
    assert first.verify().clean


def test_another_model_given_by_name_is_refused_when_it_is_loaded(open_store, store, tmp_path):
    other = tiny_model("qwen2")
    other._hf.save_pretrained(tmp_path / "other")
    other.text.tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(MismatchError, match="the model given is other"):
        open_store(model=str(tmp_path / "other")).add(handbook())


def test_a_question_racing_with_a_removal_leaves_no_packet_behind(store):
    chunks = [hit.chunk for hit in store.search("crowns", k=1)]
    store.remove(chunks[0].document)
    assert store.packets(chunks).built == 1
    assert store.info().packets == store.info().chunks
    assert len(blob_bytes(store)) == store.info().packets


def test_the_folder_stays_where_it_is_when_the_process_moves(open_store, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = DocumentStore.open("kb", model=store.model, embedder=HashEmbedder())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert relative.packets([hit.chunk for hit in relative.search("lamp", k=4)]).built == 0
    relative.close()


@pytest.mark.parametrize("name", ["what?", "a#b", "100%", "späße und mehr"])
def test_any_folder_name_works(open_store, name):
    if sys.platform == "win32" and "?" in name:
        pytest.skip("no such names on Windows")
    store = open_store(name)
    store.add(handbook())
    assert (store.folder / "store.db").exists()
    assert store.verify().clean


def test_many_new_stores_may_be_opened_at_once(open_store):
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda n: open_store(f"kb{n}").info().documents == 0, range(16)))


def test_flipped_tokens_in_a_row_are_found(store):
    with store._database.writing() as connection:
        connection.exec_driver_sql("update chunks set token_ids = zeroblob(length(token_ids)) where ordinal = 0")
    report = store.verify()
    assert not report.clean
    assert "tokens of chunk" in report.database[0]


def test_an_unknown_anchor_is_named(open_store):
    with pytest.raises(InputError, match="passages, opening, trained, corpus, none; got 'sea'"):
        open_store(anchor="sea")


def test_a_second_store_object_sees_what_the_first_adds_and_removes(open_store, store):
    other = open_store()
    assert len(other.search("lamp", k=50)) == store.info().chunks
    store.add([Document("a zebra in the kitchen", id="zebra")])
    assert other.search("zebra kitchen", k=1)[0].chunk.document == "zebra"
    store.remove("zebra")
    assert all(hit.chunk.document != "zebra" for hit in other.search("zebra", k=50))


def test_threads_may_add_search_and_remove_at_once(open_store):
    store = open_store()
    store.add(handbook())
    stop = threading.Event()
    errors = []

    def reading():
        while not stop.is_set():
            try:
                hits = store.search("lamp battery", k=4)
                assert len(store.packets([hit.chunk for hit in hits]).packets) == len(hits)
            except Exception as error:
                errors.append(error)
                return

    def writing(n):
        for turn in range(3):
            store.add([Document(f"lamp of thread {n} turn {turn}", id=f"t{n}")])
        store.remove(f"t{n}")

    readers = [threading.Thread(target=reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writing, range(4)))
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert {d.id for d in store.documents()} == set(HANDBOOK)
    assert store.verify().clean


def _add_in_a_process(folder, names, barrier):
    import torch

    torch.set_num_threads(1)
    store = DocumentStore.open(
        folder, model=tiny_model(), embedder=HashEmbedder(), chunk_tokens=60, storage="float32", first_anchor="passages"
    )
    barrier.wait()
    for name in names:
        store.add([Document(f"{name} is a number. It is shared by all.", id=name)])


@pytest.mark.skipif(sys.platform == "win32", reason="uses the fork server")
def test_two_processes_may_add_at_once(tmp_path, open_store):
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(2)
    names = [f"n{n}" for n in range(8)]
    jobs = [
        context.Process(target=_add_in_a_process, args=(str(tmp_path / "kb"), names[half::2] + names[:2], barrier))
        for half in (0, 1)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(120)
    assert [job.exitcode for job in jobs] == [0, 0]
    store = open_store()
    assert {d.id for d in store.documents()} == set(names)
    assert store.verify().clean
    assert len(blob_bytes(store)) == store.info().packets


def test_an_interrupted_build_keeps_what_was_committed_and_leaves_nothing_else(open_store, monkeypatch):
    store = open_store()
    monkeypatch.setattr("kvpacket_rag.store.builder.WINDOW_CHUNKS", 1)
    seen = []

    def interrupt(state):
        seen.append(state)
        if state.documents == 2 and state.chunks > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add(handbook(), progress=interrupt)
    assert len(store.documents()) == 2
    assert len(blob_bytes(store)) == store.info().packets
    assert store.verify().clean
    assert store.add(handbook()).added == 2


@pytest.mark.parametrize(("text", "words"), [("", "has no text"), ("   \n", "has no text"), (3, "kind str, got int")])
def test_a_document_without_text_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        Document(text, id="x")


@pytest.mark.parametrize("value", [float("nan"), object(), b"x"])
def test_metadata_that_is_not_json_is_refused(value):
    with pytest.raises(InputError, match="which JSON cannot hold"):
        Document("x", metadata={"bad": value})


def test_opening_without_creating_needs_a_store(tmp_path):
    with pytest.raises(NotFoundError, match="no store at"):
        DocumentStore.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_the_chunk_that_stands_first_has_a_packet_of_its_own_built_when_needed(open_store):
    store = open_store(first_anchor=None)
    store.add(handbook())
    assert store.settings.first_anchor == "opening"
    chunks = [hit.chunk for hit in store.search("lamp", k=3)]
    loaded = store.packets(chunks)
    assert loaded.built == 1
    assert store.packets(chunks).built == 0
    assert store.packets(chunks[1:]).built == 1, "another one stands first now"
    expected = encode_in_place(
        store.model,
        [chunk.token_ids for chunk in chunks],
        first=anchor_ids(store.model, Anchor.OPENING),
        later=anchor_ids(store.model, Anchor.PASSAGES),
    )
    for packet, own in zip(loaded.packets, expected, strict=True):
        assert torch.allclose(packet.states[0].keys, own.states[0].keys, atol=1e-5)
    assert store.verify().clean


def test_a_store_without_anchors_has_one_packet_for_every_place(open_store):
    store = open_store(anchor="none", first_anchor=None)
    store.add(handbook())
    assert store.settings.first_anchor == "none"
    assert store.packets([hit.chunk for hit in store.search("lamp", k=3)]).built == 0


def test_an_adapter_with_an_anchor_makes_the_packets_and_another_one_makes_them_anew(open_store):
    one, two = (tiny_model(adapter=Adapter.of({"anchor": torch.full((4, 64), value)})) for value in (0.5, -0.5))
    store = open_store(model=one)
    store.add(handbook())
    assert store.settings.anchor == "trained"
    chunks = [hit.chunk for hit in store.search("lamp", k=3)]
    keys = {}
    for name, model in (("one", one), ("two", two)):
        with open_store(model=model) as reopened:
            loaded = reopened.packets(chunks)
            keys[name] = loaded.packets[1].states[0].keys
            assert loaded.built == (1 if name == "one" else 2), "the first place does not depend on it"
    assert not torch.equal(keys["one"][1:], keys["two"][1:])


def test_a_store_made_with_a_trained_anchor_needs_an_adapter_with_one(open_store, llama):
    open_store(model=tiny_model(adapter=Adapter.of({"anchor": torch.ones(4, 64)}))).add(handbook())
    with pytest.raises(InputError, match="needs an adapter"):
        open_store(model=llama)


@pytest.mark.parametrize(
    ("lengths", "warned"), [((30, 120), False), ((0, 0), False), ((2, 20), True), ((200, 400), True)]
)
def test_chunks_far_from_an_adapters_training_are_warned_about(open_store, caplog, lengths, warned):
    card = AdapterCard(chunk_lengths=lengths)
    store = open_store(model=tiny_model(adapter=Adapter.of({"anchor": torch.ones(2, 64)}, card)))
    store.add(handbook())
    assert any("far from those" in record.message for record in caplog.records) is warned


def test_packets_for_the_first_place_can_be_built_beforehand(open_store):
    store = open_store(first_anchor=None)
    store.add(handbook())
    seen = []
    store.build_missing(0, progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (store.info().chunks, store.info().chunks)
    assert store.info().packets == 2 * store.info().chunks
    chunks = [hit.chunk for hit in store.search("lamp", k=3)]
    assert [store.packets(order).built for order in (chunks, chunks[::-1])] == [0, 0]
    assert store.verify().clean


def test_an_interrupted_refresh_of_the_index_is_made_up_for_at_the_next_search(store, monkeypatch):
    from kvpacket_rag.retrieval.vector_index import VectorIndex

    expected = len(store.search("lamp", 9))
    store.add([Document("One more text about a lamp.")])
    with monkeypatch.context() as patch:
        patch.setattr(VectorIndex, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.search("lamp", 9)
    assert len(store.search("lamp", 9)) == expected + 1


def test_an_embedder_can_be_sent_to_another_process():
    import copy

    from kvpacket_rag.retrieval.embedder import SentenceEmbedder

    assert copy.deepcopy(SentenceEmbedder("some-name")).name == "some-name"


def test_a_store_that_nobody_closes_lets_go_of_its_database(tmp_path, llama):
    import gc
    import warnings

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        DocumentStore.open(tmp_path / "kb", model=llama, embedder=HashEmbedder()).add([Document("Some text to keep.")])
        gc.collect()
    assert not [w for w in seen if issubclass(w.category, ResourceWarning)]


def test_the_nearest_among_nearly_equal_vectors_are_found_exactly(open_store):
    import numpy as np

    rng = np.random.default_rng(0)
    base = rng.standard_normal(64)
    vectors = [base + 3e-2 * rng.standard_normal(64) for _ in range(300)]
    store = open_store()
    store.add(
        [Document(f"Page {n}.", id=f"p{n}", whole=True, vector=tuple(map(float, v))) for n, v in enumerate(vectors)]
    )
    units = np.array([v / np.linalg.norm(v) for v in vectors], np.float32)
    for _ in range(10):
        question = base + 3e-2 * rng.standard_normal(64)
        scores = units @ (question / np.linalg.norm(question)).astype(np.float32)
        best = sorted(scores, reverse=True)[:3]
        assert [hit.score for hit in store.nearest(question, 3)] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(("storage", "warned"), [("int4", True), ("int8", False), ("float32", False)])
def test_four_bit_packets_of_a_model_not_measured_in_them_give_a_warning(open_store, caplog, storage, warned):
    open_store(storage=storage).add(handbook()[:1])
    assert ("4-bit" in caplog.text) is warned
