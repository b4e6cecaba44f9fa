"""What every method of making a context has in common.

A method says which packets it wants made beforehand, which are not counted, and then begins an answer from them:
that part is timed and its work is counted. It never tokenises, times or scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvpacket_rag.engine.assembly import Context, ask, assemble
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["AbstractMethod", "Begun", "Pass", "begin_from"]


@dataclass(frozen=True)
class Pass:
    """One forward pass, as far as its cost goes."""

    tokens: int
    keys: int
    """Keys attended to, summed over the tokens."""
    layers: int | None = None
    """Layers run, default all."""
    logits: int = 0
    """Tokens whose logits are computed."""

    @classmethod
    def behind(cls, filled: int, tokens: int, *, logits: int = 0) -> Pass:
        """A pass of `tokens` tokens behind `filled` slots."""
        return cls(tokens, tokens * filled + tokens * (tokens + 1) // 2, logits=logits)


@dataclass(frozen=True, eq=False)
class Begun:
    """A context holding the whole prompt, and what it took to make it."""

    context: Context
    logits: Tensor
    """[1, vocabulary], of the prompt's last token."""
    passes: tuple[Pass, ...]
    skipped: int = 0
    """Positions that no slot stands for, where tokens were left out."""


class AbstractMethod(ABC):
    """A way of making a context."""

    name: str
    stored: str = "nothing"
    """Methods of one word here share their packets."""

    @property
    def identity(self) -> str:
        """Everything results depend on besides name, model and question."""
        return self.stored

    def for_corpus(self, texts: Sequence[str]) -> AbstractMethod:
        """Give the method for questions about a corpus, of which `texts` are passages; most methods are the same for all."""
        return self

    @abstractmethod
    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Make what a store would hold, before any question is known. Empty for methods that store nothing."""

    @abstractmethod
    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Make the context of a question and run the question, leaving `room` slots for the answer."""


def begin_from(model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
    """Place packets one after another and run the question over them."""
    bridge = len(model.adapter.bridge)
    context = assemble(model, question.prefix, packets, room=bridge + len(question.tail) + room)
    filled = context.cache.length
    logits = ask(model, context, question.tail, bridge=model.adapter.bridge)
    return Begun(context, logits, (Pass.behind(filled, bridge + len(question.tail), logits=1),))
