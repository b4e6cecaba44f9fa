"""Questions to answers: search, assemble, generate, and say what it cost."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvpacket_rag.answer import Answer, AnswerStream, Timings, Usage
from kvpacket_rag.assembly import Context, Method, Need, ask, assemble, fit, prefill
from kvpacket_rag.documents import DocumentStore
from kvpacket_rag.errors import InputError, NotFoundError
from kvpacket_rag.generator import GenerationConfig, Piece, generate, generate_rows
from kvpacket_rag.model import ContextCache, Prompt, PromptStyle
from kvpacket_rag.packet import Packet
from kvpacket_rag.retrieval import Filter, Hit

__all__ = ["RAG"]


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A question made ready: what stands in the context, and what it took so far."""

    prompt: Prompt
    hits: list[Hit]
    """Best first."""
    placed: list[Hit]
    """In the order they stand in the context, as the packets."""
    packets: tuple[Packet, ...]
    usage: Usage
    timings: Timings
    started: float

    @property
    def length(self) -> int:
        return len(self.prompt.prefix) + sum(p.length for p in self.packets) + len(self.prompt.tail)


@dataclass(frozen=True, eq=False)
class _Answering:
    """A question that was read: the next logits are those of the answer's first token."""

    prepared: _Prepared
    method: Method
    context: Context
    logits: Tensor


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
    ) -> AnswerStream:  # fmt: skip
        """Like `ask`, but yields the text piece by piece. Errors are raised here, before the first piece."""
        config = config or self.config
        prepared = self._prepare(question, k, method, filter, history, config)
        answering = self._context(prepared, method, config)
        pieces = generate(
            self.store.model, answering.context, answering.logits, _stopping(config, answering.prepared.prompt)
        )
        return self._stream(answering, pieces)

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
        rows = [self._prepare(question, k, "packet", filter, (), config) for question in questions]
        if not rows:
            return []
        longest = max(row.length + len(bridge) for row in rows)
        cache = model.allocate(longest + config.max_new_tokens, rows=len(rows))
        answering: list[_Answering] = []
        for number, row in enumerate(rows):
            start = longest - row.length - len(bridge)
            cache.clear(0, start, number)
            answering.append(self._context(row, "packet", config, cache.view(number, start)))
        pieces: list[list[Piece]] = [[] for _ in rows]
        timings = [row.prepared.timings for row in answering]
        steps = generate_rows(
            model,
            [row.context for row in answering],
            torch.cat([row.logits for row in answering]),
            _stopping(config, rows[0].prompt),
            cache=cache.filled(longest),
        )
        for step in steps:
            for number, new in enumerate(step):
                if new:
                    pieces[number] += new
                    timings[number] = timings[number].seen(time.perf_counter() - rows[number].started)
        return [_answer(row, own, times) for row, own, times in zip(answering, pieces, timings, strict=True)]

    def show_prompt(
        self,
        question: str,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """What the model would see, with special tokens, and with the borders of packets marked."""
        prepared = self._prepare(question, k, "packet", filter, history, self.config)
        text = self.store.model.text
        blocks = [
            f"[packet {hit.chunk.id} · {hit.chunk.document} · {packet.length} tokens]\n{text.decode(packet.token_ids, skip_special=False)}"
            for hit, packet in zip(prepared.placed, prepared.packets, strict=True)
        ]
        prefix, tail = (text.decode(ids, skip_special=False) for ids in (prepared.prompt.prefix, prepared.prompt.tail))
        return "\n".join(
            [
                f"[prefix · {len(prepared.prompt.prefix)} tokens]\n{prefix}",
                *blocks,
                f"[question · {len(prepared.prompt.tail)} tokens]\n{tail}",
            ]
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def _prepare(
        self,
        question: str,
        k: int | None,
        method: Method,
        filter: Filter | None,
        history: Sequence[Mapping[str, str]],
        config: GenerationConfig,
    ) -> _Prepared:
        """Search, choose what fits, and load its packets."""
        started = time.perf_counter()
        if method not in ("packet", "full"):
            raise InputError(f"method must be 'packet' or 'full', got {method!r}.")
        model = self.store.model
        prompt = model.text.prompt(question, style=self.style, history=history)
        hits = self.store.search(question, self.k if k is None else k, filter=filter)
        if not hits and filter is None:
            raise NotFoundError(
                f"The store at {self.store.folder} has no documents. Add some with `kvpacket add {self.store.folder} PATH...`."
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
        placed = hits[::-1] if self.best_last else hits
        loaded = self.store.packets([hit.chunk for hit in placed]) if method == "packet" else None
        timings = Timings(search=searched - started, load=time.perf_counter() - searched)
        usage = Usage(packets_built=loaded.built if loaded else 0, dropped=dropped)
        return _Prepared(prompt, hits, placed, loaded.packets if loaded else (), usage, timings, started)

    def _context(
        self, prepared: _Prepared, method: Method, config: GenerationConfig, cache: ContextCache | None = None
    ) -> _Answering:
        """Make the context and run the question over it."""
        model, prompt, began = self.store.model, prepared.prompt, time.perf_counter()
        room = len(prompt.tail) + len(model.adapter.bridge) + config.max_new_tokens
        if method == "full":
            texts = [hit.chunk.token_ids for hit in prepared.placed]
            context, logits = prefill(model, prompt.prefix, texts, prompt.tail, room=config.max_new_tokens, cache=cache)
            assembled = began
        else:
            context = assemble(model, prompt.prefix, prepared.packets, room=room, cache=cache)
            model.synchronize()
            assembled = time.perf_counter()
            logits = ask(model, context, prompt.tail, bridge=model.adapter.bridge)
        model.synchronize()
        timings = replace(prepared.timings, assemble=assembled - began, question=time.perf_counter() - assembled)
        from_packets = sum(packet.length for packet in prepared.packets)
        usage = replace(
            prepared.usage, packet_tokens=from_packets, prefix_tokens=context.reused - from_packets if method == "packet" else 0,
            computed_tokens=context.computed,
        )  # fmt: skip
        return _Answering(replace(prepared, usage=usage, timings=timings), method, context, logits)

    def _stream(self, answering: _Answering, pieces: Iterator[Piece]) -> AnswerStream:
        """Wrap generated pieces; the answer so far can be asked for at any time."""
        seen: list[Piece] = []
        timings = answering.prepared.timings

        def run() -> Generator[str, None, None]:
            nonlocal timings
            for piece in pieces:
                seen.append(piece)
                timings = timings.seen(time.perf_counter() - answering.prepared.started)
                if piece.text:
                    yield piece.text

        return AnswerStream(run(), lambda: _answer(answering, seen, timings))


def _answer(answering: _Answering, pieces: Sequence[Piece], timings: Timings) -> Answer:
    """The answer that the pieces so far make."""
    prepared = answering.prepared
    usage = replace(prepared.usage, answer_tokens=sum(piece.token is not None for piece in pieces))
    text = "".join(piece.text for piece in pieces).strip()
    return Answer(text, tuple(prepared.hits), usage, timings, answering.method)


def _stopping(config: GenerationConfig, prompt: Prompt) -> GenerationConfig:
    """The settings of a generation, with the texts at which an answer to this prompt ends."""
    return replace(config, stop=(*config.stop, *prompt.stop)) if prompt.stop else config
