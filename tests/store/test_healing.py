"""A damaged packet is dropped and rebuilt from its text: the answer is that of an undamaged store, and says what happened."""

from __future__ import annotations

import contextlib
import logging
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvpacket_rag import RAG, Conversation, Document, GenerationConfig, Metrics
from kvpacket_rag.answering.conversation import Passage, Turn
from kvpacket_rag.errors import DamagedError
from kvpacket_rag.events import DamageFound, PacketsBuilt, PacketsHealed
from tests.conftest import blob_bytes

QUESTION = "How long does the battery last?"
SHORT = GenerationConfig(max_new_tokens=8)
FLIPS = 60


def files_of(store):
    return sorted(path for path in (store.folder / "packets").rglob("*") if path.is_file())


def flip(path, dice):
    """Flip one bit of a file in place, if the file is still there."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        at = dice.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def spoil(store, damage):
    for path in files_of(store):
        damage(path)
    store.forget_packets()


DAMAGES = {
    "flipped bit": lambda path: flip(path, random.Random(3)),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_bytes(b"not a packet"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_an_answer_is_that_of_an_undamaged_store(store, damage):
    rag = RAG(store, k=3, config=SHORT)
    expected, before = rag.ask(QUESTION), store.info().packets
    spoil(store, damage)
    healed = rag.ask(QUESTION)
    assert healed.text == expected.text
    gone = damage is DAMAGES["gone"]
    assert (healed.usage.healed, healed.usage.packets_built) == ((0, 3) if gone else (3, 0))
    assert rag.ask(QUESTION).usage.healed == 0
    store.packets(store.chunks())
    assert store.verify().clean
    assert store.info().packets == before


def test_healing_is_told_once_in_events_metrics_notes_and_the_log(open_store, caplog):
    prometheus = pytest.importorskip("prometheus_client")
    heard, metrics = [], Metrics(prometheus.CollectorRegistry())
    store = open_store("told", hooks=[heard.append, metrics])
    store.add([Document("The battery of the lamp lasts nine days.", id="a")])
    spoil(store, DAMAGES["flipped bit"])
    heard.clear()
    with caplog.at_level(logging.WARNING):
        answer = RAG(store, k=1, config=SHORT).ask(QUESTION)
    assert [record.levelname for record in caplog.records if "is damaged" in record.message] == ["WARNING"]
    assert "1 packet was damaged and had to be rebuilt from the text." in answer.usage.notes
    kinds = [type(event) for event in heard]
    assert (kinds.count(DamageFound), kinds.count(PacketsHealed), kinds.count(PacketsBuilt)) == (1, 1, 1)
    assert metrics.registry.get_sample_value("kvpacket_healed_packets_total") == 1
    assert metrics.registry.get_sample_value("kvpacket_damaged_packets_total") == 1


def test_a_conversation_heals_too(store):
    chunk = store.chunks()[0]
    talk = Conversation.over(store, SHORT)
    turns = [Turn("user", (Passage(chunk.text, chunk.id), "What does it say?"))]
    expected = talk.reply(turns)
    spoil(store, DAMAGES["flipped bit"])
    reply = talk.reply(turns)
    assert (reply.text, reply.usage.healed) == (expected.text, 1)


def test_where_the_text_is_damaged_too_the_error_stays(store):
    with contextlib.closing(sqlite3.connect(store.folder / "store.db")) as connection, connection:
        connection.execute("update chunks set text = text || '!'")
    spoil(store, DAMAGES["flipped bit"])
    with pytest.raises(DamagedError, match="does not match its checksum"):
        store.packets(store.chunks())
    assert len(files_of(store)) == store.info().packets  # nothing was dropped


def test_healing_can_be_turned_off(open_store, store):
    spoil(store, DAMAGES["flipped bit"])
    strict = open_store(heal=False)
    with pytest.raises(DamagedError):
        RAG(strict, k=3, config=SHORT).ask(QUESTION)
    assert len(store.verify().damaged) == store.info().packets


def test_a_store_that_is_only_read_answers_and_writes_nothing(open_store, store):
    expected = RAG(store, k=3, config=SHORT).ask(QUESTION)
    spoil(store, DAMAGES["flipped bit"])
    before = blob_bytes(store)
    only_read = open_store(read_only=True)
    answer = RAG(only_read, k=3, config=SHORT).ask(QUESTION)
    assert (answer.text, answer.usage.healed) == (expected.text, 3)
    assert blob_bytes(store) == before


def test_answers_stay_right_while_bits_flip_under_them(open_store):
    store = open_store("crowd", ram_bytes=0)  # every packet is read from its file each time
    store.add([Document(f"The lamp of room {n} is painted in colour {n * 7}.", id=str(n)) for n in range(20)])
    questions = [f"Which colour has the lamp of room {n}?" for n in range(20)]
    rag = RAG(store, k=2, config=GenerationConfig(max_new_tokens=3))
    expected = {question: rag.ask(question).text for question in questions}
    dice, stop = random.Random(5), threading.Event()

    def ask(seed):
        own, wrong = random.Random(seed), []
        while not stop.is_set():
            question = own.choice(questions)
            if rag.ask(question).text != expected[question]:
                wrong.append(question)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, seed) for seed in range(4)]
        try:
            for _ in range(FLIPS):
                flip(dice.choice(files_of(store)), dice)
                stop.wait(0.02)
        finally:
            stop.set()
        assert [one.result() for one in asking] == [[], [], [], []]
    store.packets(store.chunks())
    assert store.verify().clean
