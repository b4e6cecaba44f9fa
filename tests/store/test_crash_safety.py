"""A store survives being killed at any moment: what was committed answers, the rest leaves at most unused files."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder
from tests.support import crash_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 needs POSIX")
KILLS = int(os.environ.get("KVPACKET_KILLS", "30"))
"""Hundreds by hand."""


def test_killed_at_random_moments_the_store_stays_whole(tmp_path):
    context = multiprocessing.get_context("forkserver")
    folder = str(tmp_path / "kb")
    dice = random.Random(0)
    committed = exported = 0
    for _ in range(KILLS):
        started = context.Event()
        child = context.Process(target=crash_child.run, args=(folder, started))
        child.start()
        assert started.wait(60)
        child.join(dice.uniform(0, 0.5))
        child.kill()
        child.join()
        store = crash_child.open_at(folder)
        report = store.verify()
        assert report.damaged == ()
        assert report.database == ()
        if not report.clean:
            store.collect_garbage()
            assert store.verify().clean
        for stored in store.documents():
            number = stored.id.removeprefix("doc")
            hits = store.search(f"topic{number}", k=20)
            own = [hit.chunk for hit in hits if hit.chunk.document == stored.id]
            assert len(own) == stored.chunks
            assert store.packets(own).built == 0
            committed += 1
        bundle = tmp_path / "kb.kvpb"
        if bundle.exists():  # whole, or the one before
            with DocumentStore.open(bundle, model=crash_child.MODEL, embedder=HashEmbedder(), read_only=True) as whole:
                assert whole.verify().clean
                exported += 1
        if store.documents():
            answer = RAG(store, k=2).ask("What is topic1 about?", config=None)
            assert answer.usage.packets_built == 0
        store.close()
    assert committed > KILLS
    assert exported
