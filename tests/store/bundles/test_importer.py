"""A bundle carries a store to another place whole, or changes nothing there."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import random
import struct
import sys
import time
import tracemalloc

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import DamagedError, InputError, KVPacketError, MismatchError, NotFoundError, StorageFullError
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.store.bundles.format import FORMAT, MAGIC, SIGNATURE
from kvpacket_rag.store.bundles.importer import import_bundle
from kvpacket_rag.store.packet_store import PacketStore
from tests.conftest import blob_bytes, handbook, tiny_model
from tests.support import crash_child

START = b"%b%04d" % (MAGIC, FORMAT)
QUESTION = "how long does the battery last"


def shown(store):
    """Everything of a store that a question can see."""
    chunks = [(c.id, c.document, c.ordinal, c.start, c.stop, c.text, c.token_ids, c.content) for c in store.chunks()]
    documents = [(d.id, d.title, d.source, d.metadata, d.characters, d.chunks) for d in store.documents()]
    hits = [(hit.chunk.id, hit.score) for hit in store.search(QUESTION, k=5)]
    packets = {name.rsplit("-", 1)[0]: data for name, data in blob_bytes(store).items()}
    return sorted(chunks), documents, hits, packets


@pytest.fixture
def bundle(store, tmp_path):
    store.export(tmp_path / "kb.kvpb")
    return tmp_path / "kb.kvpb"


def test_a_store_made_from_a_bundle_is_the_store_it_was_made_from(store, bundle, open_store, tmp_path):
    report = import_bundle(bundle, tmp_path / "other")
    other = open_store("other")
    assert shown(other) == shown(store)
    assert (report.added, report.updated, report.removed) == (len(store.documents()), 0, 0)
    assert report.packets == store.info().packets
    assert other.verify().clean
    assert other.settings == store.settings
    first, second = (RAG(one).ask(QUESTION) for one in (store, other))
    assert first.text == second.text
    assert second.usage.packets_built == first.usage.packets_built


def test_taking_a_bundle_in_twice_changes_nothing(bundle, open_store, tmp_path):
    import_bundle(bundle, tmp_path / "other")
    before = shown(open_store("other"))
    again = import_bundle(bundle, tmp_path / "other")
    assert (again.added, again.updated, again.chunks, again.packets) == (0, 0, 0, 0)
    assert again.unchanged == 4
    assert shown(open_store("other")) == before


def test_equal_stores_give_equal_bundles(store, bundle, tmp_path):
    store.export(tmp_path / "again.kvpb")
    assert (tmp_path / "again.kvpb").read_bytes() == bundle.read_bytes()


def test_some_documents_can_be_exported_and_join_those_that_are_there(store, open_store, tmp_path):
    names = [document.id for document in store.documents()]
    for number, name in enumerate(names[:2]):
        store.export(tmp_path / "part.kvpb", documents=[name])
        import_bundle(tmp_path / "part.kvpb", tmp_path / "other")
        assert len(open_store("other").documents()) == number + 1
    assert open_store("other").verify().clean


def test_what_changed_since_a_bundle_is_added_replaced_and_removed(store, bundle, open_store, tmp_path):
    import_bundle(bundle, tmp_path / "other")
    names = [document.id for document in store.documents()]
    store.remove(names[0])
    store.add(
        [Document("A lamp of another kind entirely, with two switches.", id=names[1]), Document("New here.", id="new")]
    )
    report = store.export(tmp_path / "changes.kvpb", since=bundle)
    assert (report.documents, report.removed) == (2, 1)
    assert report.bytes < bundle.stat().st_size
    taken = import_bundle(tmp_path / "changes.kvpb", tmp_path / "other")
    assert (taken.added, taken.updated, taken.removed) == (1, 1, 1)
    assert shown(open_store("other")) == shown(store)
    assert open_store("other").verify().clean


def test_a_running_store_answers_from_what_was_taken_in(store, open_store, tmp_path):
    store.add([Document("The cellar lamp is green and older than the house.", id="cellar")])
    other = open_store("other")
    other.add(handbook()[:1])
    assert "cellar" not in {hit.chunk.document for hit in other.search("cellar lamp", k=3)}
    store.export(tmp_path / "one.kvpb", documents=["cellar"])
    import_bundle(tmp_path / "one.kvpb", other.folder)
    assert other.search("The cellar lamp is green", k=1)[0].chunk.document == "cellar"


@pytest.mark.parametrize(
    ("options", "field"),
    [({"chunk_tokens": 40}, "chunk_tokens"), ({"storage": "float16"}, "storage"), ({"anchor": "none"}, "anchor")],
)
def test_a_bundle_made_with_something_else_is_refused_by_name(bundle, open_store, options, field):
    other = open_store("other", **options)
    other.add(handbook()[:1])
    before = shown(other)
    with pytest.raises(MismatchError) as refused:
        import_bundle(bundle, other.folder)
    assert refused.value.field == field
    assert shown(other) == before


def test_a_bundle_of_another_model_is_refused(bundle, open_store):
    other = open_store("other", model=tiny_model("llama", seed=9))
    other.add(handbook()[:1])
    with pytest.raises(MismatchError, match="weights"):
        import_bundle(bundle, other.folder)


def test_an_adapter_of_the_store_goes_with_it(store, llama, open_store, tmp_path):
    import torch

    store.remake(adapter=Adapter.of({"bridge": torch.randn(2, llama.hidden_size)}))
    store.export(tmp_path / "kb.kvpb")
    import_bundle(tmp_path / "kb.kvpb", tmp_path / "other")
    other = open_store("other", first_anchor="opening")
    assert other.model.adapter.digest == store.model.adapter.digest
    plain = open_store("plain", first_anchor="opening")
    plain.add(handbook()[:1])
    with pytest.raises(MismatchError, match="adapter"):
        import_bundle(tmp_path / "kb.kvpb", plain.folder)


def test_wrong_requests_are_refused_with_what_to_do(store, bundle, open_store, tmp_path):
    with pytest.raises(NotFoundError, match="no document 'lamp'"):
        store.export(tmp_path / "x", documents=["lamp"])
    with pytest.raises(NotFoundError, match="no documents"):
        open_store("empty").export(tmp_path / "x")
    with pytest.raises(InputError, match="not both"):
        store.export(tmp_path / "x", documents=[], since=bundle)
    with pytest.raises(NotFoundError, match="kvpacket export"):
        import_bundle(tmp_path / "nowhere.kvpb", tmp_path / "kb2")
    with pytest.raises(DamagedError, match="not a bundle"):
        import_bundle(__file__, tmp_path / "kb2")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "kb2").exists()


def test_a_damaged_packet_is_not_exported_and_an_older_bundle_stays(store, bundle):
    before = bundle.read_bytes()
    victim = next(path for path in (store.folder / "packets").rglob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(DamagedError):
        store.export(bundle)
    assert bundle.read_bytes() == before
    assert [path.name for path in bundle.parent.iterdir() if "part" in path.name or "tmp" in path.name] == []


def test_a_full_disk_is_named_and_an_older_bundle_stays(store, bundle, monkeypatch):
    before = bundle.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kvpacket_rag.store.blobs.folder.os.fsync", full)
    with pytest.raises(StorageFullError, match="full"):
        store.export(bundle)
    assert bundle.read_bytes() == before
    assert [path.name for path in bundle.parent.glob("*.tmp")] == []


# -- hostile and damaged bundles ----------------------------------------------------------------------------------


def header_of(data):
    (length,) = struct.unpack("<Q", data[8:16])
    return json.loads(data[16 : 16 + length]), data[16 + length + 32 + SIGNATURE :]


def with_header(header, rest):
    text = json.dumps(header).encode()
    return START + struct.pack("<Q", len(text)) + text + hashlib.sha256(text).digest() + bytes(SIGNATURE) + rest


def refused(data, folder, tmp_path):
    """Try to take bytes in as a bundle: an error of ours, soon, in little memory, and nothing changed."""
    path = tmp_path / "hostile.kvpb"
    path.write_bytes(data)
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(KVPacketError):
            import_bundle(path, folder)
        assert time.perf_counter() - start < 5
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


@pytest.fixture
def target(open_store):
    """A store into which bundles are tried, and what it holds."""
    other = open_store("other")
    other.add(handbook()[:1])
    before = shown(other)
    yield other.folder
    assert shown(other) == before
    assert other.verify().clean


def test_a_bundle_cut_anywhere_changes_nothing(bundle, target, tmp_path):
    data = bundle.read_bytes()
    for part in range(50):
        refused(data[: len(data) * part // 50], target, tmp_path)
    refused(data + b"x", target, tmp_path)


def test_a_bit_flipped_anywhere_is_found_and_changes_nothing(bundle, target, tmp_path):
    data, rng = bundle.read_bytes(), random.Random(0)
    for _ in range(60):
        wrong = bytearray(data)
        wrong[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        refused(bytes(wrong), target, tmp_path)


def test_headers_that_promise_what_is_not_there_change_nothing(bundle, target, tmp_path):
    header, rest = header_of(bundle.read_bytes())
    sections = header["sections"]
    for change in (
        {"sections": {}},
        {"sections": {**sections, "more": sections["blobs"]}},
        {"settings": {**header["settings"], "chunk_tokens": -1}},
        {"settings": {**header["settings"], "unknown": 1}},
        {"settings": None},
        {"fingerprint": {}},
    ):
        refused(with_header({**header, **change}, rest), target, tmp_path)
    for key, section in sections.items():
        for change in (
            {"bytes": 2**62},
            {"bytes": -1},
            {"offset": 2**62},
            {"offset": "0"},
            {"bytes": True},
            {"path": "../../x"},
        ):
            refused(
                with_header({**header, "sections": {**sections, key: {**section, **change}}}, rest), target, tmp_path
            )
    refused(START + struct.pack("<Q", 2**62) + b"{}", target, tmp_path)
    refused(with_header([], b""), target, tmp_path)
    refused(bundle.read_bytes().replace(START, b"KVPB0009"), target, tmp_path)


def repacked(bundle, **lines):
    """The bundle with some sections of JSON lines replaced, their digests made right: a forger's work."""
    header, rest = header_of(bundle.read_bytes())
    parts, at = {}, 0
    for key, section in sorted(header["sections"].items(), key=lambda item: (item[1]["offset"], item[1]["bytes"])):
        data = rest[section["offset"] : section["offset"] + section["bytes"]]
        if key in lines:
            rows = [lines[key](json.loads(line)) for line in data.splitlines()]
            data = b"".join(json.dumps(row).encode() + b"\n" for row in rows if row is not None)
        parts[key] = data
    out = b""
    for key, data in parts.items():
        digest = hashlib.sha256(data).hexdigest() if key != "blobs" else ""
        header["sections"][key] = {"offset": at, "bytes": len(data), "sha256": digest}
        out += data
        at += len(data)
    return with_header(header, out)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("chunks", lambda row: {**row, "tokens": [1, 2, 3]}),
        ("chunks", lambda row: {**row, "tokens": "abc"}),
        ("chunks", lambda row: {**row, "document": "nobody"}),
        ("chunks", lambda row: {**row, "dimension": 10**9}),
        ("chunks", lambda row: {**row, "name": "same"}),
        ("chunks", lambda row: {"x": 1}),
        ("documents", lambda row: {**row, "name": None}),
        ("documents", lambda row: {**row, "id": 1}),
        ("documents", lambda row: {**row, "name": "same"}),
        ("packets", lambda row: {**row, "bytes": 2**40}),
        ("packets", lambda row: {**row, "offset": -1}),
        ("packets", lambda row: {**row, "key": "../../x"}),
        ("packets", lambda row: {**row, "fingerprint": "0"}),
        ("packets", lambda row: {**row, "sha256": "0"}),
        ("fingerprints", lambda row: {**row, "digest": "0"}),
        ("fingerprints", lambda row: {**row, "fields": {**row["fields"], "model": "other"}}),
        ("fingerprints", lambda row: None),
    ],
)
def test_rows_that_do_not_fit_together_change_nothing(bundle, target, tmp_path, section, change):
    refused(repacked(bundle, **{section: change}), target, tmp_path)


def test_a_bundle_repacked_without_a_change_is_taken_in(bundle, tmp_path):
    (tmp_path / "same.kvpb").write_bytes(repacked(bundle))
    assert import_bundle(tmp_path / "same.kvpb", tmp_path / "other").added > 0


def test_garbage_collection_while_a_bundle_is_taken_in_costs_another_try(
    store, bundle, open_store, tmp_path, monkeypatch
):
    other, calls = open_store("other"), []
    insert = PacketStore.insert

    def collected(self, connection, blobs, anchor):
        if not calls:
            calls.append(1)
            for path in (other.folder / "packets").rglob("*.safetensors"):
                path.unlink()
        insert(self, connection, blobs, anchor)

    monkeypatch.setattr(PacketStore, "insert", collected)
    import_bundle(bundle, other.folder)
    assert calls
    assert shown(open_store("other")) == shown(store)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_import_leaves_the_store_as_it_was_or_whole(store, bundle, open_store, tmp_path):
    other = open_store("other")
    other.add(handbook()[:1])
    states = [shown(other), None]
    import_bundle(bundle, tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    for delay in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3):
        started = context.Event()
        child = context.Process(target=crash_child.take_in, args=(str(bundle), str(other.folder), started))
        child.start()
        assert started.wait(60)
        child.join(delay)
        child.kill()
        child.join()
        assert other.info().documents in (1, len(store.documents()))
        other.collect_garbage()
        assert other.verify().clean
    import_bundle(bundle, other.folder)
    assert shown(other)[:3] == shown(open_store("whole"))[:3]
    assert states[0] != shown(other)
