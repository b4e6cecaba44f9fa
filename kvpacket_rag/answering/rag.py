"""Question answering: search, assemble the context, generate the answer, and report its cost."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from kvpacket_rag.answering.answer import Answer, AnswerStream, Timings, Usage
from kvpacket_rag.answering.comparison import Comparison
from kvpacket_rag.answering.generation import GenerationConfig, generate_rows
from kvpacket_rag.answering.prompt import Block, PreparedPrompt, blocks, show
from kvpacket_rag.answering.running_answer import RunningAnswer, begin, report, stopping, stream
from kvpacket_rag.engine.assembly import Method, Need, Segment, fit
from kvpacket_rag.engine.chat import PromptStyle
from kvpacket_rag.errors import InputError, NotFoundError, check_kind
from kvpacket_rag.events import Answered
from kvpacket_rag.retrieval.filters import Filter
from kvpacket_rag.retrieval.search import Hit
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["RAG"]


NOTHING_FOUND = "No document fits the question's filter."
"""Default answer if no chunk is found."""


@dataclass(frozen=True, eq=False)
class RAG:
    """Answers questions from a document store."""

    store: DocumentStore
    k: int = 4
    """Number of chunks in the context."""
    best_last: bool = True
    """Place the best-ranked chunk last, next to the question, where small models use it best. Else it is first."""
    style: PromptStyle = field(default_factory=PromptStyle)
    config: GenerationConfig = field(default_factory=GenerationConfig)
    nothing_found: str | None = NOTHING_FOUND
    """Answer if no chunk passes the filter and `min_score`. The model is not asked then. None raises `NotFoundError`."""
    min_score: float | None = None
    """Lowest score of a chunk in the context, a cosine similarity from -1 to 1. None takes the k nearest, however far."""

    def __post_init__(self) -> None:
        check_kind(self.store, DocumentStore, "The store of a RAG", "Open one with DocumentStore.open(...).")
        check_kind(self.style, PromptStyle, "The style of a RAG")
        check_kind(self.config, GenerationConfig, "The config of a RAG")

    def ask(
        self, question: str, *, k: int | None = None, method: Method = "packet", filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (), config: GenerationConfig | None = None,
    ) -> Answer:  # fmt: skip
        """Answer a question.

        method: "packet" takes the states of the documents from packets, "full" computes the whole prompt.
        history: earlier turns, oldest first, as `{"role": ..., "content": ...}`.
        If no chunk passes the filter and `min_score`, the answer is `nothing_found`, without sources or generated tokens.
        Raises `InputError` for an empty question or k below 1, `NotFoundError` for a store without documents, and
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
        """Answer a question as `ask` does, but yield the text piece by piece.

        Errors are raised by this call, before the first piece.
        """
        config = self._config(config)
        prepared = self._prepare(question, k, method, filter, history, config)
        if isinstance(prepared, Answer):
            self._report(prepared)
            return AnswerStream(_pieces(prepared), lambda: prepared)
        hits, prompt = prepared
        answering = begin(self.store.model, prompt, config.max_new_tokens)
        return stream(self.store.model, answering, config, lambda done: _answer(hits, done), self.store.events)

    def ask_batch(
        self,
        questions: Sequence[str],
        *,
        k: int | None = None,
        filter: Filter | None = None,
        config: GenerationConfig | None = None,
    ) -> list[Answer]:
        """Answer several questions from packets. Prompts are computed one after another and decoded together.

        The time to the first token of a question includes computing the prompts of the others.
        Raises the same errors as `ask`.
        """
        config = self._config(config)
        check_kind(questions, (list, tuple), "The questions of a batch")
        prepared = [self._prepare(question, k, "packet", filter, (), config) for question in questions]
        asked = [one for one in prepared if not isinstance(one, Answer)]
        for one in prepared:
            if isinstance(one, Answer):
                self._report(one)
        answers = iter(self._decoded(asked, config))
        return [one if isinstance(one, Answer) else next(answers) for one in prepared]

    def _decoded(self, prepared: Sequence[tuple[list[Hit], PreparedPrompt]], config: GenerationConfig) -> list[Answer]:
        """Compute the prompts one after another, and decode the answers together."""
        if not prepared:
            return []
        model, bridge = self.store.model, self.store.model.adapter.bridge
        rows = [prompt for _, prompt in prepared]
        longest = max(row.length + len(bridge) for row in rows)
        cache = model.allocate(longest + config.max_new_tokens, rows=len(rows))
        answering: list[RunningAnswer] = []
        for number, row in enumerate(rows):
            start = longest - row.length - (len(bridge) if row.packets else 0)
            cache.clear(0, start, number)
            answering.append(begin(model, row, config.max_new_tokens, cache.view(number, start)))
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
            report(self.store.events, done)
        return [_answer(hits, done) for (hits, _), done in zip(prepared, answering, strict=True)]

    def compare(
        self, question: str, *, k: int | None = None, filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (), config: GenerationConfig | None = None,
    ) -> Comparison:  # fmt: skip
        """Answer with full prefill and then from packets, each as `ask` does, and return both answers.

        Both times include the search. Packets come from memory or disk. Missing packets are built: the answer counts
        them, and the next comparison finds them in the store. Model and embedder are loaded beforehand, so that the
        time of the first answer does not include loading them. Raises the same errors as `ask`.
        """
        self.store.load()
        methods: tuple[Method, Method] = ("full", "packet")
        full, packet = (
            self.ask(question, k=k, method=method, filter=filter, history=history, config=config) for method in methods
        )
        return Comparison(question, packet, full)

    def prompt(
        self, question: str, *, k: int | None = None, method: Method = "packet", filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> tuple[Block, ...]:  # fmt: skip
        """Return what the model would see, split at the borders of packets. Packets that are not stored are built.

        If no chunk is found, the model is not asked, and nothing is returned.
        Raises the same errors as `ask`.
        """
        prepared = self._prepare(question, k, method, filter, history, self.config)
        return () if isinstance(prepared, Answer) else blocks(self.store.model, prepared[1])

    def show_prompt(
        self, question: str, *, k: int | None = None, filter: Filter | None = None, history: Sequence[Mapping[str, str]] = (),
    ) -> str:  # fmt: skip
        """Return what the model would see, with special tokens and with the borders of packets marked."""
        return show(self.prompt(question, k=k, filter=filter, history=history))

    # -- steps ----------------------------------------------------------------------------------------------

    def _config(self, given: GenerationConfig | None) -> GenerationConfig:
        """Return the settings of a question."""
        config = given or self.config
        check_kind(config, GenerationConfig, "The config of a question")
        return config

    def _prepare(
        self,
        question: str,
        k: int | None,
        method: Method,
        filter: Filter | None,
        history: Sequence[Mapping[str, str]],
        config: GenerationConfig,
    ) -> tuple[list[Hit], PreparedPrompt] | Answer:
        """Search, choose the chunks that fit, and load their packets.

        Return the chunks in the context, best first, and the prompt; or the answer, if no chunk is found.
        """
        started = time.perf_counter()
        if method not in ("packet", "full"):
            raise InputError(f"method must be 'packet' or 'full', got {method!r}.")
        model = self.store.model
        prompt = model.text.prompt(question, style=self.style, history=history)
        hits = self._search(question, self.k if k is None else k, filter)
        if not hits:
            return self._nothing(method, time.perf_counter() - started)
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
        usage = Usage(
            packets_built=loaded.built if loaded else 0, healed=loaded.healed if loaded else 0, dropped=dropped
        )
        segments: tuple[Segment, ...] = loaded.packets if loaded else tuple(chunk.token_ids for chunk in chunks)
        return hits, PreparedPrompt(
            prompt.prefix, segments, prompt.tail, chunks, prompt.stop, method, usage, timings, started
        )

    def _search(self, question: str, k: int, filter: Filter | None) -> list[Hit]:
        hits = self.store.search(question, k, filter=filter)
        if not hits and (filter is None or not self.store.info().documents):
            raise NotFoundError(
                f"The store at {self.store.location} has no documents. Add some with `kvpacket add {self.store.location} PATH...`."
            )
        return hits if self.min_score is None else [hit for hit in hits if hit.score >= self.min_score]

    def _nothing(self, method: Method, elapsed: float) -> Answer:
        """Return the answer to a question for which no chunk was found."""
        if self.nothing_found is None:
            raise NotFoundError(
                "No document passes the filter and min_score. Change them, or set nothing_found to an answer."
            )
        timings = Timings(search=elapsed, first_token=elapsed, total=elapsed)
        return Answer(self.nothing_found, (), Usage(), timings, method)

    def _report(self, answer: Answer) -> None:
        """Emit the event of an answer that no model gave."""
        self.store.events.emit(Answered(answer.method, asdict(answer.usage), asdict(answer.timings)))


def _pieces(answer: Answer) -> Generator[str, None, None]:
    yield answer.text


def _answer(hits: Sequence[Hit], answering: RunningAnswer) -> Answer:
    """Return the answer that consists of the pieces so far."""
    return Answer(answering.text, tuple(hits), answering.cost, answering.timings, answering.prompt.method)
