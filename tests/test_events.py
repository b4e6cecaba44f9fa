"""What a store tells of its work: to hooks, to the log, to Prometheus."""

from __future__ import annotations

import logging

import pytest

from kvpacket_rag import events
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import DamagedError
from kvpacket_rag.serve.metrics import Metrics
from tests.conftest import handbook

QUESTION = "how long does the battery last"


@pytest.fixture
def heard():
    return []


@pytest.fixture
def told(open_store, heard):
    return open_store(hooks=[heard.append])


def kinds(heard):
    return [type(event).__name__ for event in heard]


def test_each_step_of_adding_and_answering_is_told_once(told, heard):
    told.add(handbook())
    assert kinds(heard).count("DocumentStored") == 4
    built = [event for event in heard if isinstance(event, events.PacketsBuilt)]
    assert sum(event.packets for event in built) == told.info().packets
    assert sum(event.tokens for event in built) == sum(len(chunk.token_ids) for chunk in told.chunks())
    heard.clear()
    answer = RAG(told, k=3).ask(QUESTION)
    assert kinds(heard) == ["Searched", "PacketsLoaded", "Answered"]
    assert heard[0].hits == 3
    loaded, answered = heard[1:]
    assert loaded.from_memory + loaded.read == 3
    assert loaded.missing == 0
    assert answered.usage["packet_tokens"] == answer.usage.packet_tokens
    assert answered.timings["total"] == answer.timings.total > 0


def test_bytes_are_counted_when_they_are_read_and_not_from_memory(told, heard):
    told.add(handbook())
    chunks = told.chunks()
    told.forget_packets()
    heard.clear()
    told.packets(chunks)
    told.packets(chunks)
    first, second = heard
    assert (first.read, first.from_memory, first.bytes) == (len(chunks), 0, told.info().packet_bytes)
    assert (second.read, second.from_memory, second.bytes) == (0, len(chunks), 0)


def test_updates_removals_evictions_and_damage_are_told(told, heard):
    told.add(handbook())
    heard.clear()
    told.add([Document("The battery lasts eleven days now.", id="battery")])
    assert events.DocumentStored("battery", 1, updated=True) in heard
    told.remove("care")
    assert heard[-1] == events.DocumentRemoved("care")
    before = told.info()
    told.max_bytes = before.packet_bytes // 2
    after = told.info()
    assert heard[-1] == events.PacketsEvicted(before.packets - after.packets, before.packet_bytes - after.packet_bytes)
    for path in (told.folder / "packets").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    told.forget_packets()
    told._heal = False
    with pytest.raises(DamagedError):
        told.packets(told.chunks())
    found = {type(event) for event in heard}
    assert events.DamageFound in found
    assert events.PacketsHealed not in found


def test_an_answer_that_is_stopped_early_is_told_as_far_as_it_came(told, heard):
    told.add(handbook())
    with RAG(told, k=2).stream(QUESTION) as stream:
        next(iter(stream))
    assert isinstance(heard[-1], events.Answered)
    assert kinds(heard).count("Answered") == 1


def test_each_answer_of_a_batch_is_told(told, heard):
    told.add(handbook())
    RAG(told, k=2).ask_batch([QUESTION, "what does a lamp cost"])
    assert kinds(heard).count("Answered") == 2


def test_a_hook_that_fails_is_logged_and_stops_nothing(open_store, caplog):
    def fail(event):
        raise RuntimeError("no network")

    heard = []
    store = open_store(hooks=[fail, heard.append])
    store.add(handbook()[:1])
    assert len(store.documents()) == 1
    assert heard
    assert "A hook failed on" in caplog.text


def test_log_records_have_fields(told, caplog):
    with caplog.at_level(logging.DEBUG, logger="kvpacket_rag.events"):
        told.add(handbook()[:1])
    record = next(record for record in caplog.records if record.kvpacket["event"] == "DocumentStored")
    assert record.kvpacket["document"] == "battery"
    assert record.levelno == logging.DEBUG


def test_prometheus_counts_what_was_told(open_store):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    store = open_store(hooks=[Metrics(registry)])
    store.add(handbook())
    store.remove("care")
    RAG(store, k=3).ask(QUESTION)
    RAG(store, k=3).ask(QUESTION, method="full")

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("kvpacket_documents_total", change="added") == 4
    assert value("kvpacket_documents_total", change="removed") == 1
    assert value("kvpacket_packets_total", source="memory") + value("kvpacket_packets_total", source="read") == 3
    assert value("kvpacket_packets_total", source="built") == 0
    assert value("kvpacket_step_seconds_count", step="first_token", method="packet") == 1
    assert value("kvpacket_step_seconds_count", step="first_token", method="full") == 1
    assert value("kvpacket_prompt_tokens_total", source="packet") > 0
    assert value("kvpacket_index_seconds_count") == 2
    assert value("kvpacket_built_tokens_total") > 0
