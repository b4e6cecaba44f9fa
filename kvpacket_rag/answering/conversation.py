"""Conversations whose text contains stored chunks. Each chunk is taken from its packet, and the rest is computed.

A chunk is recognised by its exact text alone. Ids, markers and tokens of the chat template inside a text are treated as
ordinary text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvpacket_rag.answering.answer import AnswerStream, Timings, Usage, heading, to_html
from kvpacket_rag.answering.generation import GenerationConfig
from kvpacket_rag.answering.prompt import PreparedPrompt, blocks, show
from kvpacket_rag.answering.running_answer import RunningAnswer, begin, stream
from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.engine.assembly import Method, Segment
from kvpacket_rag.engine.chat import SEPARATOR
from kvpacket_rag.engine.loading import load_engine
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError, check_text
from kvpacket_rag.events import Events
from kvpacket_rag.store.document_store import DocumentStore
from kvpacket_rag.store.settings import DEFAULT_MODEL, model_source

__all__ = ["Conversation", "Passage", "Reply", "Turn", "splice"]

P = TypeVar("P")


@dataclass(frozen=True)
class Passage:
    """A retrieved text inside a turn. A text that is not exactly a chunk of the store is computed and counted."""

    text: str
    id: str = ""
    """Id of its chunk, if known. It saves a search, and it is ignored if the chunk has a different text."""


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation."""

    role: str
    """The role: system, user or assistant."""
    content: tuple[str | Passage, ...]
    """Texts and passages, in order."""


@dataclass(frozen=True)
class Reply:
    """The next turn of a conversation, with its cost."""

    text: str
    chunks: tuple[Chunk, ...]
    """Chunks that were taken from packets, in the order of the text."""
    usage: Usage
    timings: Timings
    """Durations of the steps. `search` is the time spent finding the chunks."""
    method: Method = "packet"

    def _repr_html_(self) -> str:
        chunks = [(heading(chunk), chunk.text) for chunk in self.chunks]
        return to_html(self.text, self.method, chunks, self.usage, self.timings)


@dataclass(frozen=True)
class _Place:
    """A chunk that was found in a turn."""

    chunk: Chunk
    whole: bool
    """Whether the chunk is followed in the text by the separator that ends its packet."""


@dataclass(frozen=True, eq=False)
class Conversation:
    """Continues conversations with one model, with or without the packets of a store."""

    model: Engine
    store: DocumentStore | None = None
    config: GenerationConfig = field(default_factory=GenerationConfig)

    @classmethod
    def over(cls, store: DocumentStore, config: GenerationConfig | None = None) -> Conversation:
        """Return a conversation that uses a store and its model."""
        return cls(store.model, store, config or GenerationConfig())

    @classmethod
    def open(cls, store: DocumentStore | None = None, model: Engine | str | None = None) -> Conversation:
        """Return a conversation that uses a store, or a model alone.

        Raises `InputError` if the store was made with a model other than the given one.
        """
        if store is None:
            model = model or DEFAULT_MODEL
            return cls(load_engine(model) if isinstance(model, str) else model)
        own = store.model
        if model is None:
            return cls.over(store)
        model_source(model)  # raises for models of other libraries
        given, same, named = (
            (model, {own.name, own.source}, model)
            if isinstance(model, str)
            else (model.weights_hash, {own.weights_hash}, model.name)
        )
        if given not in same:
            raise InputError(
                f"The store at {store.location} has packets of {own.name}, the model given is {named}. "
                "Leave the model out, or open a store made with it."
            )
        return cls.over(store)

    def reply(
        self, turns: Sequence[Turn], *, method: Method = "packet", config: GenerationConfig | None = None
    ) -> Reply:
        """Generate the next turn.

        method: "full" computes the text of the chunks as well, for comparison.
        Raises `InputError` for turns that the model's chat template cannot represent, and `BudgetError` if they do not
        fit its window.
        """
        answer = self.stream(turns, method=method, config=config)
        for _ in answer:
            pass
        return answer.answer

    def stream(
        self, turns: Sequence[Turn], *, method: Method = "packet", config: GenerationConfig | None = None
    ) -> AnswerStream[Reply]:
        """Generate the next turn as `reply` does, but yield the text piece by piece.

        Errors are raised by this call, before the first piece.
        """
        config = config or self.config
        answering = begin(self.model, self._prepare(turns, method), config.max_new_tokens)
        return stream(self.model, answering, config, _reply, Events() if self.store is None else self.store.events)

    def show_prompt(self, turns: Sequence[Turn]) -> str:
        """Return what the model would see, with special tokens and with the borders of packets marked."""
        return show(blocks(self.model, self._prepare(turns, "packet")))

    def _prepare(self, turns: Sequence[Turn], method: Method) -> PreparedPrompt:
        """Find the chunks in the turns, load their packets, and put text and packets into the chat template."""
        started = time.perf_counter()
        if method not in ("packet", "full"):
            raise InputError(f"method must be 'packet' or 'full', got {method!r}.")
        if not turns:
            raise InputError("A conversation needs at least one turn, got none.")
        missed = 0
        contents: list[tuple[str, list[str | _Place]]] = []
        for turn in turns:
            texts, unknown = self._known(turn)
            missed += unknown
            contents.append((turn.role, self._found(texts)))
        places = [part for _, content in contents for part in content if isinstance(part, _Place)]
        chunks = tuple(place.chunk for place in places)
        codec = self.model.text
        prefix, *runs = codec.conversation(
            [(role, [part if isinstance(part, str) else None for part in content]) for role, content in contents]
        )
        searched = time.perf_counter()
        loaded = self.store.packets(chunks) if self.store is not None and method == "packet" else None
        timings = Timings(search=searched - started, load=time.perf_counter() - searched)
        usage = Usage(packets_built=loaded.built if loaded else 0, healed=loaded.healed if loaded else 0, missed=missed)
        if not places:
            return PreparedPrompt((), (), prefix, (), codec.stop, method, usage, timings, started)
        *between, tail = runs
        kept = [len(place.chunk.token_ids) - (0 if place.whole else len(codec.separator)) for place in places]
        pieces: list[Segment] = (
            [packet.cut(tokens) for packet, tokens in zip(loaded.packets, kept, strict=True)]
            if loaded
            else [chunk.token_ids[:tokens] for chunk, tokens in zip(chunks, kept, strict=True)]
        )
        pairs = zip(pieces, [*between, ()], strict=True)
        segments = tuple(part for pair in pairs for part in pair if part != ())
        return PreparedPrompt(prefix, segments, tail, chunks, codec.stop, method, usage, timings, started)

    def _known(self, turn: Turn) -> tuple[list[str | Chunk], int]:
        """Return the texts of a turn with the chunks of its passages, and the number of passages without a chunk."""
        missed = 0
        parts: list[str | Chunk] = []
        for part in turn.content:
            text = part if isinstance(part, str) else part.text
            check_text(text, f"A {turn.role} turn")
            chunk = self._chunk(part) if isinstance(part, Passage) else None
            missed += isinstance(part, Passage) and chunk is None
            if chunk is None and parts and isinstance(parts[-1], str):
                parts[-1] += text
            else:
                parts.append(chunk if chunk is not None else text)
        return parts, missed

    def _chunk(self, passage: Passage) -> Chunk | None:
        if self.store is None:
            return None
        named = passage.id if passage.id.isascii() else ""
        hit = self.store.get([named]).get(named) if named else None
        if hit is not None and hit.chunk.text == passage.text:
            return hit.chunk
        return self.store.find_whole(passage.text) if passage.text.strip() else None

    def _found(self, parts: Sequence[str | Chunk]) -> list[str | _Place]:
        """Split texts at the chunks that they contain. A separator belongs to the chunk before it."""
        split: list[str | Chunk] = []
        for part in parts:
            start = 0
            if isinstance(part, str) and self.store is not None:
                for found in self.store.find(part):
                    split += [part[start : found.start], found.chunk]
                    start = found.stop
            split.append(part[start:] if isinstance(part, str) else part)
        content: list[str | _Place] = []
        for number, part in enumerate(split):
            if isinstance(part, str):
                last = content[-1] if content else None
                content.append(part.removeprefix(SEPARATOR) if isinstance(last, _Place) and last.whole else part)
            else:
                after = split[number + 1] if number + 1 < len(split) else ""
                content.append(_Place(part, isinstance(after, str) and after.startswith(SEPARATOR)))
        return content


def splice(text: str, mark: str, parts: Sequence[P]) -> list[str | P]:
    """Split a text at every mark and insert `parts` in place of each mark. Empty texts are left out."""
    first, *others = text.split(mark)
    found: list[str | P] = [first] if first else []
    for other in others:
        found += parts
        if other:
            found.append(other)
    return found


def _reply(answering: RunningAnswer) -> Reply:
    """Return the reply that consists of the pieces so far."""
    prompt = answering.prompt
    chunks = prompt.chunks if prompt.method == "packet" else ()
    return Reply(answering.text, chunks, answering.cost, answering.timings, prompt.method)
