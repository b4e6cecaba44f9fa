"""Stores, bundles and adapters written by version 0.1 open, verify, and answer byte for byte as they did then."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvpacket_rag import RAG, Adapter, DocumentStore, GenerationConfig, PacketModel, import_bundle
from tests.conftest import HashEmbedder, handbook

DATA = Path(__file__).parent / "data" / "version_0_1"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model():
    hf = AutoModelForCausalLM.from_pretrained(DATA / "model", dtype=torch.float32)
    return PacketModel(hf, AutoTokenizer.from_pretrained(DATA / "model"), name="tiny-0.1", source="tiny-0.1")


@pytest.fixture
def opened(tmp_path, model):
    """Opens a copy: the data stay as they are."""
    stores = []

    def open_copy(name, **options):
        copy = tmp_path / name
        if (DATA / name).is_dir():
            shutil.copytree(DATA / name, copy)
        elif not copy.exists():
            shutil.copy(DATA / name, copy)
        stores.append(DocumentStore.open(copy, model=model, embedder=HashEmbedder(), **options))
        return stores[-1]

    yield open_copy
    for store in stores:
        store.close()


def answers(store):
    rag = RAG(store, k=3, config=GenerationConfig(max_new_tokens=24))
    rag.ask(EXPECTED["plain"]["answers"][0]["question"])  # from here on the prefix is cached, as it was then
    found = []
    for row in EXPECTED["plain"]["answers"]:
        answer = rag.ask(row["question"])
        usage = {name: getattr(answer.usage, name) for name in row["usage"]}
        sources = [hit.chunk.id for hit in answer.sources]
        found.append({"question": row["question"], "text": answer.text, "sources": sources, "usage": usage})
    return found


def checksums(store):
    files = (Path(store.folder) / "packets").rglob("*.safetensors")
    return {file.name.split("-")[0]: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("name", ["plain", "adapted"])
def test_a_store_opens_verifies_and_answers_as_before(name, opened):
    store = opened(name)
    report = store.verify()
    assert report.clean
    assert report.packets == EXPECTED[name]["verify"]
    assert report.without_packet == 0
    assert answers(store) == EXPECTED[name]["answers"]
    assert checksums(store) == EXPECTED[name]["packets"]
    assert store.max_bytes == 10**7


@pytest.mark.parametrize("name", ["plain", "adapted"])
def test_documents_added_before_are_unchanged_and_their_packets_are_the_ones_built_now(name, opened):
    store = opened(name)
    assert store.add(handbook()).unchanged == 4
    store.remove("care")
    store.add(handbook())
    store.build_missing(0)
    assert store.verify().clean
    if name == "adapted":  # numbers kept as computed: the same bytes, if the same code computes them
        assert set(checksums(store)) == set(EXPECTED[name]["packets"])
    assert answers(store) == EXPECTED[name]["answers"]


def test_a_bundle_answers_in_place_as_before(opened):
    assert answers(opened("plain.kvpb", read_only=True)) == EXPECTED["bundle"]["answers"]


def test_a_bundle_is_imported_and_answers_as_before(tmp_path, opened):
    import_bundle(DATA / "plain.kvpb", tmp_path / "imported")
    store = opened("imported")
    assert store.verify().clean
    assert answers(store) == EXPECTED["plain"]["answers"]


def test_an_adapter_is_read_and_makes_the_packets_it_made_before(model, opened):
    adapter = Adapter.load(DATA / "adapter.safetensors")
    assert [len(part) for part in (adapter.header, adapter.trailer, adapter.bridge, adapter.anchor)] == [2, 1, 3, 8]
    assert adapter.card.data == "none: random numbers"
    store = opened("plain")
    store.remake(adapter=adapter)
    store.build_missing(0)
    # As the adapted store, but for the number format: the fingerprints agree on adapter and anchor.
    other = opened("adapted")
    specs = [one._configuration.packet_spec(place).fingerprint for one in (store, other) for place in (0, 1)]
    assert (specs[0].adapter, specs[1].adapter) == (specs[2].adapter, specs[3].adapter)
    assert (specs[0].anchor, specs[1].anchor) == (specs[2].anchor, specs[3].anchor)
