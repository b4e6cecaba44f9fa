"""What machines do to a store: full disks, flipped bits, files swapped or gone, clocks, folders nobody may write, no more handles."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import DamagedError, MismatchError, StorageFullError, StoreError
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder, blob_bytes, handbook, tiny_model

QUESTION = "how long does the battery last"
FLIPS = 500


def files_of(store):
    return sorted(path for path in (store.folder / "packets").rglob("*") if path.is_file())


# -- bytes --------------------------------------------------------------------------------------------------


def test_of_bits_flipped_anywhere_every_one_is_found_and_none_is_served(store):
    dice = random.Random(0)
    keys = {path: path.name.split("-")[0] for path in files_of(store)}
    for _ in range(FLIPS):
        path = dice.choice(list(keys))
        good = path.read_bytes()
        bad, at = bytearray(good), dice.randrange(8 * len(good))
        bad[at // 8] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(DamagedError):
            store._packets.fetch(keys[path])
        path.write_bytes(good)
    assert store.verify().clean


def test_verification_finds_every_flipped_file_and_repairs_it(store):
    dice, before = random.Random(1), blob_bytes(store)
    for path in files_of(store):
        bad = bytearray(path.read_bytes())
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        path.write_bytes(bad)
    assert len(store.verify().damaged) == len(before)
    assert store.verify(repair=True).clean
    assert sorted(blob_bytes(store).values()) == sorted(before.values())


def test_files_that_changed_places_are_found_and_never_served(store):
    first, second = files_of(store)[:2]
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    for path in (first, second):
        with pytest.raises(DamagedError):
            store._packets.fetch(path.name.split("-")[0])
    assert len(store.verify().damaged) == 2
    assert store.verify(repair=True).clean


def test_rows_that_were_exchanged_are_found_and_never_served(store):
    with contextlib.closing(sqlite3.connect(store.folder / "store.db")) as connection, connection:
        (a, b) = connection.execute("select key, file, bytes, sha256 from packets limit 2").fetchall()
        connection.execute("update packets set file = 'x' where key = ?", (a[0],))
        for key, row in ((b[0], a), (a[0], b)):
            connection.execute("update packets set file = ?, bytes = ?, sha256 = ? where key = ?", (*row[1:], key))
    wanted = {a[0], b[0]}
    chunks = [
        chunk for chunk in store.chunks()
        if store._configuration.packet_spec(1).fingerprint.packet_key(chunk.content) in wanted
    ]  # fmt: skip
    store._heal = False
    for chunk in chunks:
        with pytest.raises(DamagedError, match="another packet"):
            store.packets([chunk])
    assert {key for key, _ in store.verify().damaged} == wanted
    assert store.verify(repair=True).clean


def test_a_row_that_is_gone_leaves_an_orphan_and_is_built_again(store):
    with contextlib.closing(sqlite3.connect(store.folder / "store.db")) as connection, connection:
        connection.execute("delete from packets where key in (select key from packets limit 1)")
    store.forget_packets()
    report = store.verify()
    assert (len(report.orphans), report.without_packet, report.damaged) == (1, 1, ())
    assert store.packets(store.chunks()).built == 1
    store.collect_garbage()
    assert store.verify().clean


def test_the_files_of_another_store_are_never_served(store, open_store, tmp_path):
    other = open_store("other", model=tiny_model(seed=1))
    other.add(handbook())
    folder = store.folder
    for path in files_of(store):
        path.unlink()
    shutil.copytree(other.folder / "packets", folder / "packets", dirs_exist_ok=True)
    store.forget_packets()
    assert store.packets(store.chunks()).built == len(store.chunks())  # other names: not there
    store.collect_garbage()
    assert store.verify().clean


def test_the_database_of_another_store_is_refused(store, open_store):
    other = open_store("other", model=tiny_model(seed=1))
    other.add(handbook())
    other.close()
    with pytest.raises(MismatchError):
        DocumentStore.open(other.folder, model=store.model, embedder=HashEmbedder())


# -- disks and rights ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own of 1.5 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", folder], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def opened(llama):
    stores = []

    def make(folder, **options):
        given = {
            "model": llama,
            "embedder": HashEmbedder(),
            "chunk_tokens": 60,
            "storage": "float32",
            "first_anchor": "passages",
        }
        stores.append(DocumentStore.open(folder, **{**given, **options}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_a_disk_that_fills_up_keeps_what_was_committed_and_goes_on_with_room(small_disk, opened):
    (small_disk / "other").write_bytes(bytes(300_000))  # something else that can be spared later
    store = opened(small_disk / "kb")
    added = []

    def fill():
        for number in range(200):
            store.add([Document(f"Document {number} says that topic{number} is number {number}.", id=f"doc{number}")])
            added.append(f"doc{number}")

    with pytest.raises(StorageFullError, match="Free some space"):
        fill()
    assert len(added) > 3
    assert sorted(document.id for document in store.documents()) == sorted(added)
    assert store.verify().damaged == ()
    assert store.packets(store.chunks()).built == 0
    with pytest.raises(StorageFullError):
        store.export(small_disk / "kb.kvpb")
    assert not list(small_disk.glob("*.kvpb*"))
    (small_disk / "other").unlink()
    for name in added[: len(added) // 2]:
        store.remove(name)
    store.collect_garbage()
    store.add([Document("There is room again.", id="again")])
    assert store.verify().clean


def test_a_disk_that_can_only_be_read_answers_and_says_why_it_takes_nothing(small_disk, opened):
    store = opened(small_disk / "kb")
    store.add(handbook()[:1])
    expected = RAG(store, k=1).ask(QUESTION)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError, match="read_only=True"):
        opened(small_disk / "kb")
    reader = opened(small_disk / "kb", read_only=True)
    assert RAG(reader, k=1).ask(QUESTION).text == expected.text
    assert reader.verify().clean
    with pytest.raises(StoreError, match="read_only"):
        reader.add([Document("new", id="new")])


NO_HANDLES = """
    import resource, sys, os
    from tests.support.crash_child import document, open_at
    from kvpacket_rag.errors import KVPacketError
    from kvpacket_rag.answering.rag import RAG

    store = open_at(sys.argv[1])
    store.add(document(number, 0) for number in range(6))
    store.forget_packets()
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    told = 0
    for spare in (0, 1, 2, 3, 5):
        while len(held) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] or spare:
            os.close(held.pop())
            spare -= 1
        for step in (lambda: store.add([document(7, 1)]), lambda: RAG(store, k=3).ask("What is topic1 about?"),
                     lambda: open_at(sys.argv[2]), store.verify, store.collect_garbage, lambda: store.remove("doc1")):
            try:
                step()
            except KVPacketError as error:
                told += 1
    for one in held:
        os.close(one)
    assert told, "nothing failed"
    report = store.verify()
    assert not report.damaged and not report.database, report
    store.collect_garbage()
    assert store.verify().clean
    assert RAG(store, k=3).ask("What is topic2 about?").usage.packets_built == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_without_file_handles_left_errors_are_ours_and_the_store_stays_whole(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(NO_HANDLES), str(tmp_path / "kb"), str(tmp_path / "second")]
    limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *command]
    done = subprocess.run(
        limited, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_clock_that_goes_backwards_harms_nothing(open_store, monkeypatch):
    moments = itertools.count(2_000_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    store = open_store()
    store.add(handbook())
    store.max_bytes = store.info().packet_bytes * 2 // 3
    for _ in range(3):
        RAG(store, k=3).ask(QUESTION)
    store.add([Document("The battery lasts eleven days now.", id="battery")])
    assert any("eleven" in hit.chunk.text for hit in store.search(QUESTION))
    assert store.info().packet_bytes <= store.max_bytes
    assert store.verify().damaged == ()
    store.collect_garbage()
    assert store.verify().clean
