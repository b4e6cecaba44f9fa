"""Answers: the text, where it came from, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.display.html import answer_html
from kvpacket_rag.engine.assembly import Method
from kvpacket_rag.retrieval.search import Hit

__all__ = ["Answer", "AnswerStream", "Timings", "Usage", "heading", "to_html"]

A = TypeVar("A")


@dataclass(frozen=True)
class Usage:
    """Where the tokens of the prompt came from. Nothing is silently slower: what was built or dropped is here."""

    packet_tokens: int = 0
    """Context tokens taken from packets."""
    prefix_tokens: int = 0
    """Tokens of the prompt before the documents whose states were kept from before."""
    computed_tokens: int = 0
    """Tokens the model read for this question."""
    answer_tokens: int = 0
    """Tokens generated."""
    packets_built: int = 0
    """Packets that were not stored and had to be built for this question."""
    missed: int = 0
    """Retrieved texts of which the store has no chunk: they were computed."""
    dropped: tuple[str, ...] = ()
    """Ids of retrieved chunks left out because they did not fit the model's window, lowest ranked first to go."""

    @property
    def reused(self) -> int:
        """Tokens of the prompt whose states were there before the question."""
        return self.packet_tokens + self.prefix_tokens

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Tokens of the prompt, by where their states came from."""
        return (
            ("from packets", self.packet_tokens),
            ("of the kept prefix", self.prefix_tokens),
            ("computed", self.computed_tokens),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What made an answer slower or poorer than it might have been, in sentences."""
        some = (
            (self.packets_built, "packet was", "packets were", "not stored and had to be built"),
            (
                self.missed,
                "retrieved text is",
                "retrieved texts are",
                "in no chunk of the store and had to be computed",
            ),
            (len(self.dropped), "chunk was", "chunks were", "left out, since the model's window was full"),
        )
        return tuple(f"{n} {one if n == 1 else many} {what}." for n, one, many, what in some if n)


@dataclass(frozen=True)
class Timings:
    """Seconds, by step."""

    search: float = 0.0
    """Embedding the question and finding the nearest chunks."""
    load: float = 0.0
    """Packets from memory or disk, built if need be."""
    assemble: float = 0.0
    """Placing packets in the cache, keys turned to their positions."""
    question: float = 0.0
    """Reading the question (method "full": the whole prompt)."""
    first_token: float = 0.0
    """From the question's arrival to the first token, search included."""
    total: float = 0.0
    """From the question's arrival to the end of the answer."""

    def seen(self, elapsed: float) -> Timings:
        """Note that a piece of the answer came `elapsed` seconds after the question."""
        return replace(self, first_token=self.first_token or elapsed, total=elapsed)

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """Seconds of the steps one after another; generating (in a batch, waiting for the others too) is what is left."""
        before = (
            ("search", self.search),
            ("load", self.load),
            ("assemble", self.assemble),
            ("question", self.question),
        )
        return (*before, ("generation", max(0.0, self.total - sum(seconds for _, seconds in before))))


@dataclass(frozen=True)
class Answer:
    """An answer with its sources and its cost."""

    text: str
    """What the model said."""
    sources: tuple[Hit, ...]
    """The chunks in the context, best first."""
    usage: Usage
    """Where the tokens of the prompt came from."""
    timings: Timings
    """Seconds, by step."""
    method: Method = "packet"
    """Whether it came from packets or from a full prefill."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {
            "answer": self.text,
            "method": self.method,
            "sources": [
                {
                    "document": hit.chunk.document,
                    "title": hit.title,
                    "chunk": hit.chunk.id,
                    "score": hit.score,
                    "text": hit.chunk.text,
                }
                for hit in self.sources
            ],
            "usage": asdict(self.usage),
            "timings": asdict(self.timings),
        }

    def _repr_html_(self) -> str:
        sources = [(heading(hit.chunk, hit.title, hit.score), hit.chunk.text) for hit in self.sources]
        return to_html(self.text, self.method, sources, self.usage, self.timings)


class AnswerStream(Generic[A]):
    """Yields the text of an answer as it is generated; `answer` holds the whole once it ended.

    Closing it (or leaving a `with` block) stops the work.
    """

    def __init__(self, pieces: Generator[str, None, None], done: Callable[[], A]) -> None:
        self._pieces, self._done = pieces, done

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __enter__(self) -> AnswerStream[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop generating."""
        self._pieces.close()

    @property
    def answer(self) -> A:
        """The answer so far; complete once the stream has ended."""
        return self._done()


def heading(chunk: Chunk, title: str = "", score: float | None = None) -> str:
    """Say which piece of which document a chunk is."""
    named = "" if title in ("", chunk.document) else f"{title} · "
    near = "" if score is None else f", score {score:.2f}"
    return f"{named}{chunk.document}, part {chunk.ordinal + 1}{near}"


def to_html(text: str, method: Method, sources: Sequence[tuple[str, str]], usage: Usage, timings: Timings) -> str:
    """Show an answer in a notebook. sources: (heading, passage), in order."""
    return answer_html(
        text, method=method, tokens=usage.parts, steps=timings.steps, first_token=timings.first_token, sources=sources, notes=usage.notes,
    )  # fmt: skip
