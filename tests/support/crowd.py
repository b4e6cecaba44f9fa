"""One of several processes that use one store at once; its own module, so that the fork server imports it once."""

from __future__ import annotations

import os
import random
import time

from kvpacket_rag.answering.generation import GenerationConfig
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import StoreError
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder
from tests.support.crash_child import MODEL

DOCUMENTS = 6


def document(owner: int, number: int, version: int) -> Document:
    shared = f"Everybody says sentence {version % 3}."  # so that packets are shared, and given up by one and not by all
    return Document(
        f"Number {number} of {owner} in version {version} is about topic{number}. {shared}", id=f"doc{owner}-{number}"
    )


def open_at(place: dict[str, str]) -> DocumentStore:
    return DocumentStore.open(
        **place, model=MODEL, embedder=HashEmbedder(), chunk_tokens=60, storage="float32", first_anchor="passages"
    )


def run(place: dict[str, str], environment: dict[str, str], owner: int, seconds: float, results) -> None:
    """Add, update, remove, ask and collect garbage at random; reports the own documents' last versions, and what went wrong.

    environment: that of the test, since the fork server has the one it was started with.
    """
    os.environ.update(environment)
    dice, versions, wrong, counts = random.Random(owner), {}, [], {}
    try:
        store = open_at(place)
        rag = RAG(store, k=3, config=GenerationConfig(max_new_tokens=2))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            action = dice.choice(["add", "add", "remove", "ask", "ask", "gc", "verify"])
            number = dice.randrange(DOCUMENTS)
            try:
                _act(action, store, rag, owner, number, versions, dice)
                counts[action] = counts.get(action, 0) + 1
            except StoreError as error:
                if "Try again" not in str(error):  # the documented error of a busy store
                    wrong.append(f"{action}: {error!r}")
                counts["busy"] = counts.get("busy", 0) + 1
        store.close()
    except BaseException as error:
        wrong.append(repr(error))
    results.put((owner, versions, wrong, counts))


def _act(action, store, rag, owner, number, versions, dice) -> None:
    match action:
        case "add":
            version = dice.randrange(1000)
            store.add([document(owner, number, version)])
            versions[number] = version
        case "remove":
            if number in versions:
                store.remove(f"doc{owner}-{number}")
                del versions[number]
        case "ask":
            if versions:  # there is something to find at every moment: the own documents
                answer = rag.ask(f"What is topic{number} about?")
                assert answer.sources
        case "gc":
            store.collect_garbage()
        case "verify":
            report = store.verify()
            assert not report.damaged, report.damaged
            assert not report.database, report.database
