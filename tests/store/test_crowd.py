"""Several processes add, change, remove, ask and collect garbage in one store at once."""

from __future__ import annotations

import multiprocessing
import os
import sys

import pytest

from tests.support import crowd, servers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a fork server")
PROCESSES = 4
SECONDS = float(os.environ.get("KVPACKET_CROWD_SECONDS", "6"))
"""A minute and more by hand."""


@pytest.fixture(params=["sqlite", "postgresql+folder", "postgresql+s3"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("KVPACKET_HOME", str(tmp_path / "home"))
    if request.param == "sqlite":
        yield {"location": str(tmp_path / "kb")}
        return
    with servers.postgresql() as address:
        if request.param == "postgresql+folder":
            yield {"location": address, "blobs": (tmp_path / "blobs").as_uri()}
            return
        with servers.s3() as environment:
            for key, value in environment.items():
                monkeypatch.setenv(key, value)
            yield {"location": address, "blobs": "s3://packets/crowd"}


def state(store):
    """What is stored, whatever the order it came in."""
    return (
        [(d.id, d.title, d.characters, d.chunks) for d in store.documents()],
        sorted((c.document, c.ordinal, c.text, c.content) for c in store.chunks()),
    )


def test_the_end_is_that_of_doing_all_one_after_another(place, tmp_path):
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    processes = [
        context.Process(target=crowd.run, args=(place, dict(os.environ), owner, SECONDS, results))
        for owner in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    ended = [results.get(timeout=SECONDS + 120) for _ in processes]
    for process in processes:
        process.join(30)
    assert [wrong for _, _, wrong, _ in ended] == [[]] * PROCESSES
    print([counts for *_, counts in ended])  # noqa: T201 - shown on failure, and by hand
    assert sum(counts.get("add", 0) for *_, counts in ended) > PROCESSES
    store, serial = crowd.open_at(place), crowd.open_at({"location": str(tmp_path / "serial")})
    for owner, versions, _, _ in ended:
        serial.add(crowd.document(owner, number, version) for number, version in sorted(versions.items()))
    assert state(store) == state(serial)
    store.collect_garbage()
    assert store.verify().clean
    store.build_missing()
    assert store.packets(store.chunks()).built == 0
    assert {name.rsplit("-", 1)[0] for name in store._packets.blobs.files()} == {
        name.rsplit("-", 1)[0] for name in serial._packets.blobs.files()
    }
    for one in (store, serial):
        one.close()
