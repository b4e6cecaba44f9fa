"""Changing how a store's packets are made: another anchor, another adapter, the best of a few."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kvpacket_rag.answering.generation import Piece
from kvpacket_rag.bench import anchor_tuning as tuning
from kvpacket_rag.bench.measures import Interval
from kvpacket_rag.cli.main import app
from kvpacket_rag.errors import AdapterError, InputError
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.store.document_store import DocumentStore
from kvpacket_rag.training.samples import written as writing
from kvpacket_rag.training.samples.sample import Sample
from kvpacket_rag.training.samples.written import write_samples
from tests.conftest import HANDBOOK, HashEmbedder, blob_bytes, handbook, tiny_model

SAMPLES = [Sample("How long does the battery last?", (), tuple(HANDBOOK.values())[:3], 0, complete=True)]
SOFT = Adapter.of({"anchor": torch.full((4, 64), 0.3), "bridge": torch.ones(2, 64)})


def all_chunks(store: DocumentStore):
    return [hit.chunk for hit in store.search("lamp", k=4)]


@pytest.fixture
def store(open_store) -> DocumentStore:
    made = open_store(first_anchor=None)
    made.add(handbook())
    return made


def test_packets_made_anew_behind_another_anchor_replace_the_old_ones(store: DocumentStore):
    before = blob_bytes(store)
    store.remake(Anchor.CORPUS, texts=("The lamp is green.",))
    after = blob_bytes(store)
    assert not set(before) & set(after)
    assert store.info().packets == store.info().chunks == len(after)
    assert store.packets(all_chunks(store)[:1]).built == 1, "the one that stands first is built on demand"
    assert store.verify().clean


def test_a_corpus_anchor_is_kept_with_the_store(store: DocumentStore, open_store):
    store.remake(Anchor.CORPUS, texts=("The lamp is green.", "It has a cable."))
    with open_store(first_anchor=None) as again:
        assert again.settings.anchor == "corpus"
        assert again.settings.anchor_texts == ("The lamp is green.", "It has a cable.")
        chunks = all_chunks(again)
        again.packets(chunks)
        assert again.packets(chunks).built == 0
        again.add([*handbook(), replace(handbook()[0], id="more", text="One more lamp is black.")])
        assert again.verify().clean


def test_an_adapter_taken_into_a_store_is_used_when_it_is_opened_by_name(tmp_path: Path, llama):
    folder = tmp_path / "model"
    llama._hf.save_pretrained(folder)
    llama.text.tokenizer.save_pretrained(folder)
    options = {"embedder": HashEmbedder(), "chunk_tokens": 60}
    with DocumentStore.open(tmp_path / "kb", model=str(folder), **options) as store:
        store.add(handbook())
        store.remake(adapter=SOFT)
        assert store.settings.anchor == "trained"
    with DocumentStore.open(tmp_path / "kb", embedder=HashEmbedder()) as again:
        assert again.model.adapter.digest == SOFT.digest
        chunks = all_chunks(again)
        again.packets(chunks)
        assert again.packets(chunks).built == 0


def test_an_adapter_of_another_model_is_refused_and_changes_nothing(store: DocumentStore):
    before = blob_bytes(store), store.settings
    other = replace(SOFT, card=replace(SOFT.card, model="another-model"))
    with pytest.raises(AdapterError, match="another-model"):
        store.remake(adapter=other)
    assert (blob_bytes(store), store.settings) == before
    assert not (store.folder / "adapter.safetensors").exists()


def test_an_interrupted_remake_goes_on(store: DocumentStore, monkeypatch):
    monkeypatch.setattr("kvpacket_rag.store.repair.PORTION", 2)

    def stop(done: int, total: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.remake(Anchor.OPENING, progress=stop)
    seen = []
    store.remake(Anchor.OPENING, progress=lambda *counts: seen.append(counts))
    assert seen[0][1] == store.info().chunks - 2
    assert store.info().packets == store.info().chunks
    assert store.verify().clean


def test_candidates_are_neutral_own_and_trained(open_store):
    plain, soft = open_store("plain"), open_store("soft", model=tiny_model(adapter=SOFT))
    for store in (plain, soft):
        store.add(handbook())
    names = [candidate.name for candidate in tuning.candidates(plain, 0)]
    assert names == ["passages", "corpus-1", "corpus-2", "corpus-3"]
    assert tuning.candidates(soft, 0)[1].anchor is Anchor.TRAINED
    assert tuning.candidates(plain, 0) == tuning.candidates(plain, 0)


def test_the_candidate_nearest_to_full_prefill_wins_and_nothing_is_changed(store: DocumentStore):
    before = blob_bytes(store), store.settings
    report = tuning.tune_anchor(store, SAMPLES, tuning.candidates(store, 0))
    assert report.kl[report.best.name].mean == min(kl.mean for kl in report.kl.values())
    assert all(isinstance(kl, Interval) and kl.mean > 0 for kl in report.kl.values())
    assert (blob_bytes(store), store.settings) == before


def test_tuning_without_questions_is_an_error(store: DocumentStore):
    with pytest.raises(InputError, match="0 and 4"):
        tuning.tune_anchor(store, [], tuning.candidates(store, 0))


def test_questions_are_written_once_and_hold_the_chunk_asked_about(store: DocumentStore, tmp_path: Path, monkeypatch):
    asked = []

    def write(model, chunk, topic, seed):
        asked.append(topic)
        return "" if len(asked) == 2 else f"What about {len(asked)}?"

    monkeypatch.setattr(writing, "write_question", write)
    file = tmp_path / "questions.jsonl"
    samples = write_samples(store, 6, 3, 0, file)
    assert len(samples) == 5, "one question came to nothing"
    texts = {chunk.text for chunk in store.chunks()}
    for sample in samples:
        assert store.chunks()[sample.row].text == sample.passages[0]
        assert set(sample.passages) <= texts
        assert len(sample.passages) == 3
    with file.open("a") as lines:
        lines.write('{"key": "cut')
    assert write_samples(store, 6, 3, 0, file) == samples
    assert len(asked) == 6
    assert len(write_samples(store, 8, 3, 0, file)) == 7
    assert [json.loads(line)["question"] for line in file.read_text().splitlines()][1] == ""


def test_an_empty_store_has_nothing_to_ask_about(open_store, tmp_path: Path):
    with pytest.raises(InputError, match="add some first"):
        write_samples(open_store(), 2, 2, 0, tmp_path / "q.jsonl")


def test_when_the_model_writes_no_question_at_all_more_are_to_be_asked_for(
    store: DocumentStore, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(writing, "write_question", lambda *_: "")
    with pytest.raises(InputError, match="no question about any of 3 chunks; ask for more"):
        write_samples(store, 3, 2, 0, tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ('Here it is:\n"Who built the lamp?" \nMore.', "Who built the lamp?"),
        ("Who built it?", "Who built it?"),
        ("No question at all.", ""),
        ("", ""),
    ],
)
def test_the_first_line_that_is_a_question_is_taken(store: DocumentStore, monkeypatch, written: str, question: str):
    monkeypatch.setattr(writing, "generate", lambda *_: iter([Piece(written, 7)]))
    assert writing.write_question(store.model, store.chunks()[0].token_ids, "a name", 0) == question


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "either a knowledge base"),
        (["train", "kb", "--format", "needle"], "either a knowledge base"),
        (["train", "--format", "needle", "--start", "nowhere"], "delimiters, closing"),
        (["train", "--format", "needle", "--parts", "anchor=0"], "at least one embedding"),
        (["train", "--format", "needle", "--parts", "anchor"], "must be like"),
        (["train", "--format", "needle", "--anchor", "corpus"], "passages, opening or none"),
        (["train", "--format", "needle", "--k", "0"], "at least 1 chunk"),
        (["adapt", "kb", "no-file"], "no-file"),
        (["tune-anchor", "no-kb"], "no-kb"),
    ],
)
def test_careless_commands_are_told_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, Exception)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
