"""A comparison of two answers to one question: with full prefill and from packets."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvpacket_rag.answering.answer import Answer
from kvpacket_rag.display.html import comparison_html, milliseconds

__all__ = ["Comparison"]

Whose = Literal["both", "full", "packet"]
MARKS: dict[Whose, str] = {"both": "{}", "full": "[-{}-]", "packet": "{{+{}+}}"}
"""Marks of removed and added words, as in the word diffs of version control."""


@dataclass(frozen=True)
class Comparison:
    """The two answers to one question. See `RAG.compare`."""

    question: str
    packet: Answer
    """The answer from packets."""
    full: Answer
    """The answer with full prefill."""

    @property
    def speedup(self) -> float:
        """How many times as fast the first token is with packets. Search and loading are included."""
        return self.full.timings.first_token / max(self.packet.timings.first_token, 1e-9)

    @property
    def same(self) -> bool:
        """Whether both answers are the same text."""
        return self.packet.text == self.full.text

    @property
    def difference(self) -> tuple[tuple[Whose, str], ...]:
        """Runs of words that both answers or only one of them contain, in order. White space is not compared."""
        full, packet = self.full.text.split(), self.packet.text.split()

        def runs() -> Iterator[tuple[Whose, list[str]]]:
            for kind, a, b, c, d in difflib.SequenceMatcher(None, full, packet, autojunk=False).get_opcodes():
                if kind == "equal":
                    yield "both", full[a:b]
                else:
                    yield "full", full[a:b]
                    yield "packet", packet[c:d]

        return tuple((whose, " ".join(words)) for whose, words in runs() if words)

    @property
    def verdict(self) -> str:
        """One line that says which answer was faster, by how much, and whether the answers agree."""
        full, packet = (milliseconds(answer.timings.first_token) for answer in (self.full, self.packet))
        return (
            f"First token after {full} with full prefill, {packet} from packets: {self.speedup:.1f} times as fast; "
            f"{'the same answer' if self.same else 'the answers differ'}."
        )

    def __str__(self) -> str:
        answers = [
            "\n".join([f"{name} {answer.text}", *(f"  {note}" for note in answer.usage.notes)])
            for name, answer in (("With full prefill:", self.full), ("From packets:     ", self.packet))
        ]
        words = " ".join(MARKS[whose].format(text) for whose, text in self.difference)
        return "\n".join([self.question, *answers, self.verdict, *([] if self.same else [words])])

    def _repr_html_(self) -> str:
        sides = [answer._repr_html_() for answer in (self.full, self.packet)]
        return comparison_html(self.question, self.verdict, () if self.same else self.difference, sides)
