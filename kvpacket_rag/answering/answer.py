"""Answers with their text, their sources and their cost."""

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
    """Token counts of a prompt and its answer. They report everything that made the answer slower or was dropped."""

    packet_tokens: int = 0
    """Context tokens taken from packets."""
    prefix_tokens: int = 0
    """Tokens before the documents whose states came from the cached prefix."""
    computed_tokens: int = 0
    """Tokens that the model computed for this question."""
    answer_tokens: int = 0
    """Tokens generated."""
    packets_built: int = 0
    """Packets that were not stored and had to be built for this question."""
    healed: int = 0
    """Packets that were damaged and were rebuilt from the text for this question."""
    missed: int = 0
    """Retrieved texts for which the store has no chunk. They were computed."""
    dropped: tuple[str, ...] = ()
    """Ids of retrieved chunks that did not fit the model's window. The lowest ranked are left out first."""

    @property
    def reused(self) -> int:
        """Tokens of the prompt whose states existed before the question."""
        return self.packet_tokens + self.prefix_tokens

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Tokens of the prompt, by where their states came from, each as (label, tokens)."""
        return (
            ("from packets", self.packet_tokens),
            ("from the cached prefix", self.prefix_tokens),
            ("computed", self.computed_tokens),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that say what made the answer slower or worse than it could have been."""
        some = (
            (self.packets_built, "packet was", "packets were", "not stored and had to be built"),
            (self.healed, "packet was", "packets were", "damaged and had to be rebuilt from the text"),
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
    """Durations of the steps, in seconds."""

    search: float = 0.0
    """Embedding the question and finding the nearest chunks."""
    load: float = 0.0
    """Loading packets from memory or disk, and building missing packets."""
    assemble: float = 0.0
    """Copying packets into the cache and rotating keys to their positions."""
    question: float = 0.0
    """Computing the question (method "full": prefill of the whole prompt)."""
    first_token: float = 0.0
    """From the arrival of the question to the first token, including the search."""
    total: float = 0.0
    """From the arrival of the question to the end of the answer."""

    def seen(self, elapsed: float) -> Timings:
        """Return the timings, updated for a piece of the answer that came `elapsed` seconds after the question."""
        return replace(self, first_token=self.first_token or elapsed, total=elapsed)

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """Seconds of consecutive steps, each as (name, seconds).

        Generation is the remainder. In a batch, it includes the time spent waiting for the other questions.
        """
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
    """The generated text."""
    sources: tuple[Hit, ...]
    """The chunks in the context, best first."""
    usage: Usage
    """Where the tokens of the prompt came from."""
    timings: Timings
    """Durations of the steps, in seconds."""
    method: Method = "packet"
    """Whether the answer was made from packets or with a full prefill."""

    @property
    def found(self) -> bool:
        """Whether a search found any chunk. If not, the text was not generated: see `RAG.nothing_found`."""
        return bool(self.sources or self.usage.dropped)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {
            "answer": self.text,
            "method": self.method,
            "found": self.found,
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
    """Yields the text of an answer while it is generated. After the end, `answer` is the complete answer.

    Closing the stream (or leaving a `with` block) stops the generation.
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
        """The answer so far. It is complete once the stream has ended."""
        return self._done()


def heading(chunk: Chunk, title: str = "", score: float | None = None) -> str:
    """Return a heading that names the document of a chunk and the number of the chunk in it."""
    named = "" if title in ("", chunk.document) else f"{title} · "
    near = "" if score is None else f", score {score:.2f}"
    return f"{named}{chunk.document}, part {chunk.ordinal + 1}{near}"


def to_html(text: str, method: Method, sources: Sequence[tuple[str, str]], usage: Usage, timings: Timings) -> str:
    """Return an answer as HTML for a notebook. sources: (heading, passage), in order."""
    return answer_html(
        text, method=method, tokens=usage.parts, steps=timings.steps, first_token=timings.first_token, sources=sources, notes=usage.notes,
    )  # fmt: skip
