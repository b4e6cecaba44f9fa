"""Questions to answers: search, assemble, generate, and say what it cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kvpacket_rag.answer import Answer, AnswerStream, Timings, Usage
from kvpacket_rag.assembly import Method, Need, Segment, fit
from kvpacket_rag.documents import DocumentStore
from kvpacket_rag.errors import InputError, NotFoundError
from kvpacket_rag.generator import GenerationConfig, generate_rows
from kvpacket_rag.model import PromptStyle
from kvpacket_rag.reading import Answering, Reading, read, show, stopping, stream, tell
from kvpacket_rag.retrieval import Filter, Hit

__all__ = ["RAG"]


@dataclass(frozen=True, eq=False)
class RAG:
    """Answers questions from a document store."""

    store: DocumentStore
    k: int = 4
    """Chunks in the context."""
    best_last: bool = True
    """Place the best-ranked chunk last, next to the question, where small models read best; else first."""
    style: PromptStyle = field(default_factory=PromptStyle)
    config: GenerationConfig = field(default_factory=GenerationConfig)

    def ask(
        self, question: str, *, k: int | None = None, method: Method = "packet", filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (), config: GenerationConfig | None = None,
    ) -> Answer:  # fmt: skip
        """Answer a question.

        method: "packet" takes the documents' states from packets, "full" computes the whole prompt.
        history: earlier turns, oldest first, as `{"role": ..., "content": ...}`.
        Raises `InputError` for an empty question or k below 1, `NotFoundError` for a store without documents,
        `BudgetError` if the question does not fit the model's window.
        """
        stream = self.stream(question, k=k, method=method, filter=filter, history=history, config=config)
        for _ in stream:
            pass
        return stream.answer

    def stream(
        self, question: str, *, k: int | None = None, method: Method = "packet", filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (), config: GenerationConfig | None = None,
    ) -> AnswerStream[Answer]:  # fmt: skip
        """Like `ask`, but yields the text piece by piece. Errors are raised here, before the first piece."""
        config = config or self.config
        hits, reading = self._prepare(question, k, method, filter, history, config)
        answering = read(self.store.model, reading, config.max_new_tokens)
        return stream(self.store.model, answering, config, lambda done: _answer(hits, done), self.store.events)

    def ask_batch(
        self,
        questions: Sequence[str],
        *,
        k: int | None = None,
        filter: Filter | None = None,
        config: GenerationConfig | None = None,
    ) -> list[Answer]:
        """Answer several questions from packets, read one after another and decoded together.

        A question's time to its first token includes the reading of the others. Raises what `ask` raises.
        """
        config = config or self.config
        model, bridge = self.store.model, self.store.model.adapter.bridge
        prepared = [self._prepare(question, k, "packet", filter, (), config) for question in questions]
        if not prepared:
            return []
        rows = [reading for _, reading in prepared]
        longest = max(row.length + len(bridge) for row in rows)
        cache = model.allocate(longest + config.max_new_tokens, rows=len(rows))
        answering: list[Answering] = []
        for number, row in enumerate(rows):
            start = longest - row.length - (len(bridge) if row.packets else 0)
            cache.clear(0, start, number)
            answering.append(read(model, row, config.max_new_tokens, cache.view(number, start)))
        steps = generate_rows(
            model,
            [row.context for row in answering],
            torch.cat([row.logits for row in answering]),
            stopping(config, rows[0]),
            cache=cache.filled(longest),
        )
        for step in steps:
            for answer, new in zip(answering, step, strict=True):
                answer.take(new)
        for done in answering:
            tell(self.store.events, done)
        return [_answer(hits, done) for (hits, _), done in zip(prepared, answering, strict=True)]

    def show_prompt(
        self,
        question: str,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """What the model would see, with special tokens, and with the borders of packets marked."""
        _, reading = self._prepare(question, k, "packet", filter, history, self.config)
        return show(self.store.model, reading)

    # -- steps ----------------------------------------------------------------------------------------------

    def _prepare(
        self,
        question: str,
        k: int | None,
        method: Method,
        filter: Filter | None,
        history: Sequence[Mapping[str, str]],
        config: GenerationConfig,
    ) -> tuple[list[Hit], Reading]:
        """Search, choose what fits, and load its packets; returns the chunks in the context, best first, as well."""
        started = time.perf_counter()
        if method not in ("packet", "full"):
            raise InputError(f"method must be 'packet' or 'full', got {method!r}.")
        model = self.store.model
        prompt = model.text.prompt(question, style=self.style, history=history)
        hits = self.store.search(question, self.k if k is None else k, filter=filter)
        if not hits and filter is None:
            raise NotFoundError(
                f"The store at {self.store.location} has no documents. Add some with `kvpacket add {self.store.location} PATH...`."
            )
        searched = time.perf_counter()
        adapter = model.adapter
        around, soft = (
            (len(adapter.header) + len(adapter.trailer), len(adapter.bridge)) if method == "packet" else (0, 0)
        )
        need = Need(len(prompt.prefix), len(prompt.tail) + soft, config.max_new_tokens)
        kept = fit([len(hit.chunk.token_ids) + around for hit in hits], need, model.max_positions)
        dropped = tuple(hit.chunk.id for hit in hits[kept:])
        hits = hits[:kept]
        chunks = tuple(hit.chunk for hit in (hits[::-1] if self.best_last else hits))
        loaded = self.store.packets(chunks) if method == "packet" else None
        timings = Timings(search=searched - started, load=time.perf_counter() - searched)
        usage = Usage(packets_built=loaded.built if loaded else 0, dropped=dropped)
        segments: tuple[Segment, ...] = loaded.packets if loaded else tuple(chunk.token_ids for chunk in chunks)
        return hits, Reading(prompt.prefix, segments, prompt.tail, chunks, prompt.stop, method, usage, timings, started)


def _answer(hits: Sequence[Hit], answering: Answering) -> Answer:
    """The answer that the pieces so far make."""
    return Answer(answering.text, tuple(hits), answering.cost, answering.timings, answering.reading.method)
