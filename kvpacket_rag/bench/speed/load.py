"""Questions per second and times to first token when several clients ask at the same time."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvpacket_rag.answering.generation import GenerationConfig
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Report, Table, Value
from kvpacket_rag.bench.speed.timing import Progress
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.retrieval.embedder import Embedder
from kvpacket_rag.store.document_store import DocumentStore
from kvpacket_rag.training.samples.synthetic import generate_samples

__all__ = ["measure_load"]

CHUNKS = 4
ANSWER_TOKENS = 16

COLUMNS = (
    Column("clients", "clients", "count"),
    Column("rate", "questions/s", "number"),
    Column("p50", "first token, p50", "ms"),
    Column("p99", "first token, p99", "ms"),
    Column("batch_rate", "in batches of that size, questions/s", "number"),
    Column("full_rate", "full prefill, questions/s", "number"),
    Column("full_p50", "full prefill, p50", "ms"),
    Column("full_p99", "full prefill, p99", "ms"),
)


def measure_load(
    model: PacketModel,
    clients: Sequence[int],
    *,
    questions: int = 24,
    embedder: Embedder | None = None,
    progress: Progress | None = None,
) -> Report:
    """Let each number of clients ask `questions` questions in total, alternately from packets and with full prefill."""
    if not clients or min(clients) < 1 or questions < 1:
        raise InputError(f"clients and questions must be at least 1; got {list(clients)} and {questions}.")
    samples = generate_samples("needle", max(8, questions // 2), CHUNKS, "load")
    texts = dict.fromkeys(passage for sample in samples for passage in sample.passages)
    rows: list[dict[str, Value]] = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        DocumentStore.open(Path(folder) / "kb", model=model, embedder=embedder) as store,
    ):
        store.add([Document(text, id=str(number)) for number, text in enumerate(texts)])
        rag = RAG(store, k=CHUNKS, config=replace(GenerationConfig(), max_new_tokens=ANSWER_TOKENS))
        asked = [samples[number % len(samples)].question for number in range(questions)]
        _ask(rag, asked, 1, "packet")  # warm-up: builds what is otherwise built at first use
        for number, count in enumerate(sorted(set(clients))):
            row: dict[str, Value] = {"clients": count}
            for method, prefix in (("packet", ""), ("full", "full_")):
                elapsed, first = _ask(rag, asked, count, method)
                row[f"{prefix}rate"] = questions / elapsed
                row[f"{prefix}p50"] = statistics.median(first)
                row[f"{prefix}p99"] = float(np.percentile(first, 99))
            row["batch_rate"] = questions / _ask_batches(rag, asked, count)
            rows.append(row)
            if progress is not None:
                progress(number + 1, len(set(clients)))
        about = {"model": model.name, **machine(model), "questions": questions, "chunks": CHUNKS}
        about |= {"answer_tokens": ANSWER_TOKENS}
    notes = (
        "The time to first token starts when the question arrives. It includes the search and waiting for other clients.",
    )
    return Report("Load", about, (Table("", COLUMNS, tuple(rows)),), notes)


def _ask(rag: RAG, questions: Sequence[str], clients: int, method: str) -> tuple[float, list[float]]:
    """Return the total seconds, and the seconds to the first token of each question."""
    waiting, first, lock = list(questions), [], threading.Lock()
    failed: list[BaseException] = []

    def client() -> None:
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    question = waiting.pop()
                answer = rag.ask(question, method=method)  # type: ignore[arg-type]
                with lock:
                    first.append(answer.timings.first_token)
        except BaseException as error:  # raised again by the thread that started the clients
            failed.append(error)

    start = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - start, first


def _ask_batches(rag: RAG, questions: Sequence[str], size: int) -> float:
    """Return the seconds for all questions in batches of `size`."""
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as client:  # a thread, as the clients are
        for at in range(0, len(questions), size):
            client.submit(rag.ask_batch, questions[at : at + size]).result()
    return time.perf_counter() - start
