"""A real server in a thread of this process, on a free port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvpacket_rag.answering.rag import RAG
from tests.support.servers import free_port


@contextlib.contextmanager
def serving(rag: RAG, **options: Any) -> Iterator[str]:
    """The address of a server that answers from `rag`; it stops cleanly at the end."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    from kvpacket_rag.serve.app import create_app

    port = free_port()
    config = uvicorn.Config(
        create_app(rag, **options), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
