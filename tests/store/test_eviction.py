"""A store with a limit: what was unused for longest goes, what is asked for is built again, nothing else changes."""

from __future__ import annotations

import sqlite3

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.cli.output import parse_bytes
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.database.database import Database
from kvpacket_rag.store.database.sqlite import SQLite
from tests.conftest import handbook


def texts(count: int, start: int = 0):
    return [
        Document(f"Lamp number {n} stands in room {n * 7} of the old house.", id=f"d{n}") for n in range(start, count)
    ]


def files(store):
    return {path.name: path.stat().st_size for path in (store.folder / "packets").rglob("*.safetensors")}


def held(store):
    """Bytes of packets by rows, which are those of the files."""
    assert sum(files(store).values()) == store.info().packet_bytes
    return store.info().packet_bytes


@pytest.fixture
def full(open_store):
    store = open_store()
    store.add(texts(6))
    return store


def size(store):
    return store.info().packet_bytes // store.info().packets


def test_setting_a_limit_removes_at_once_what_is_over_it_and_texts_stay(full):
    before = full.info()
    full.max_bytes = limit = int(3.5 * size(full))
    assert full.max_bytes == limit == full.info().max_bytes
    assert held(full) <= limit
    after = full.info()
    assert (after.documents, after.chunks) == (before.documents, before.chunks)
    assert after.packets == 3
    assert full.verify().clean
    assert full.verify().without_packet == 3


def test_the_packets_unused_for_longest_go_first(full, monkeypatch):
    monkeypatch.setattr("kvpacket_rag.store.eviction.NOTE_SECONDS", 0.0)
    full.max_bytes = 10**9
    chunks = {chunk.document: chunk for chunk in full.chunks()}
    for name in ("d1", "d4", "d0"):
        full.packets([chunks["d5"], chunks[name]])
    full.max_bytes = int(4.5 * size(full))
    full.forget_packets()
    for name in ("d1", "d4", "d0"):
        assert full.packets([chunks["d5"], chunks[name]]).built == 0


def test_a_limit_is_never_exceeded_while_documents_are_added(open_store):
    store = open_store()
    store.add(texts(1))
    store.max_bytes = limit = 4 * size(store)
    for number in range(1, 40, 3):
        store.add(texts(number + 3, number))
        assert held(store) <= limit
    assert store.info().documents == 40
    assert store.info().packets >= 3


def test_an_evicted_packet_is_built_again_when_a_question_needs_it_and_the_answer_says_so(full):
    rag = RAG(full, k=2)
    first = rag.ask("Which lamp stands in room 14?")
    rag.ask("Which lamp stands in room 14?")
    full.max_bytes = 1
    full.forget_packets()
    assert full.info().packets == 0
    again = rag.ask("Which lamp stands in room 14?")
    assert again.text == first.text
    assert again.usage.packets_built == 2
    assert held(full) == 0


def test_lifting_the_limit_lets_packets_be_stored_again(full):
    full.max_bytes = 1
    full.max_bytes = None
    assert full.max_bytes is None
    full.build_missing()
    assert full.info().packets == 6


def test_another_process_follows_the_limit(full, open_store):
    full.max_bytes = 2 * size(full)
    other = open_store()
    other.add(texts(9, 6))
    assert held(other) <= full.max_bytes
    assert other.max_bytes == full.max_bytes


def test_repair_and_building_beforehand_drop_nothing_for_what_nobody_asked_for(full):
    full.max_bytes = int(3.5 * size(full))
    kept = set(files(full))
    full.verify(repair=True)
    full.build_missing()
    assert set(files(full)) == kept


def test_building_beforehand_stops_at_the_limit_whatever_the_sizes(open_store):
    store = open_store()
    store.max_bytes = 1
    store.add(texts(20))
    assert store.info().packets == 0
    store.build_missing()  # nothing has room, and nothing is built again and again
    assert store.info().packets == 0
    store.max_bytes = None
    store.build_missing()
    small = set(files(store))
    store.add([Document("A much longer text about lamps and rooms. " * 3, id=f"long{n}") for n in range(3)])
    longest = {chunk.content for chunk in store.chunks() if chunk.document.startswith("long")}
    with store._database.writing() as connection:
        for content in longest:
            connection.exec_driver_sql("delete from packets where content = ?", (content,))
    store.collect_garbage()
    assert set(files(store)) == small
    store.max_bytes = store.info().packet_bytes + 1000
    store.build_missing()
    assert set(files(store)) == small


def test_answering_never_waits_for_a_writer_to_note_what_was_used(full, monkeypatch):
    monkeypatch.setattr("kvpacket_rag.store.eviction.NOTE_SECONDS", 0.0)
    full.max_bytes = 10**9
    chunks = full.chunks()[:2]
    full.packets(chunks)
    other = Database(SQLite(full.folder / "store.db"))
    with other.writing():
        full.packets(chunks)  # would wait a minute
    assert full._packets.cap._used
    full.packets(chunks)
    assert not full._packets.cap._used
    other.close()


def test_uses_are_written_down_when_the_store_is_closed(full, open_store):
    full.max_bytes = 10**9
    chunks = {chunk.document: chunk for chunk in full.chunks()}
    full.packets([chunks["d3"], chunks["d2"]])
    limit = int(1.5 * size(full))
    full.close()
    again = open_store()
    again.max_bytes = limit
    assert again.packets([chunks["d3"], chunks["d2"]]).built == 1  # that of the first place is another one


def test_uses_that_are_never_written_down_take_a_bounded_memory(full, monkeypatch):
    monkeypatch.setattr("kvpacket_rag.store.eviction.MOST_NOTED", 3)
    for key in ("a", "b", "c", "a", "d"):
        full._packets.cap.used([key])
    assert list(full._packets.cap._used) == ["c", "a", "d"]


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_one_byte_is_refused(full, limit):
    with pytest.raises(InputError, match="at least 1"):
        full.max_bytes = limit


def test_a_store_of_an_older_release_gets_its_uses(open_store, tmp_path):
    store = open_store()
    store.add(handbook()[:2])
    path = store.folder / "store.db"
    store.close()
    with sqlite3.connect(path) as connection:  # as the tables of the first release were
        connection.execute("drop index packets_by_use")
        connection.execute("alter table packets drop column used")
        connection.execute("update alembic_version set version_num = '0001'")
    Database(SQLite(path)).close()
    with sqlite3.connect(path) as connection:
        rows = connection.execute("select used, created from packets").fetchall()
    assert rows
    assert all(used == created for used, created in rows)


def test_sizes_are_read_as_people_write_them():
    assert [parse_bytes(t) for t in ("12", "1KB", "20 gb", "1.5GiB")] == [12, 1000, 20 * 10**9, 3 * 2**29]
    for wrong in ("", "GB", "-1GB", "1 PB", "1,5GB"):
        with pytest.raises(InputError, match="500MB"):
            parse_bytes(wrong)
