"""The base class of all methods of building a context.

A method first encodes the packets that a store would hold. This step is neither timed nor counted. It then begins an
answer from them. This step is timed, and its work is counted. A method never tokenises, times or scores.
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
    """The cost of one forward pass."""

    tokens: int
    keys: int
    """Number of keys attended to, summed over the tokens."""
    layers: int | None = None
    """Number of layers run. None means all layers."""
    logits: int = 0
    """Number of tokens whose logits are computed."""

    @classmethod
    def behind(cls, filled: int, tokens: int, *, logits: int = 0) -> Pass:
        """Return the cost of a pass of `tokens` tokens behind `filled` slots."""
        return cls(tokens, tokens * filled + tokens * (tokens + 1) // 2, logits=logits)


@dataclass(frozen=True, eq=False)
class Begun:
    """A context that holds the whole prompt, and the cost of building it."""

    context: Context
    logits: Tensor
    """Logits [1, vocabulary] of the prompt's last token."""
    passes: tuple[Pass, ...]
    skipped: int = 0
    """Number of positions without a slot, whose tokens were left out."""


class AbstractMethod(ABC):
    """A method of building a context."""

    name: str
    stored: str = "nothing"
    """Describes the stored packets. Methods with equal values share their packets."""

    @property
    def identity(self) -> str:
        """Everything that results depend on besides the method's name, the model and the question."""
        return self.stored

    def for_corpus(self, texts: Sequence[str]) -> AbstractMethod:
        """Return the method for questions about a corpus. Most methods return themselves.

        texts: passages of the corpus.
        """
        return self

    @abstractmethod
    def packets(self, model: PacketModel, chunks: Sequence[Sequence[int]]) -> list[Packet]:
        """Encode the packets that a store would hold, before any question is known. Methods may store none."""

    @abstractmethod
    def begin(self, model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
        """Build the context of a question and run the question. Leave `room` slots for the answer."""


def begin_from(model: PacketModel, question: Question, packets: Sequence[Packet], room: int) -> Begun:
    """Place packets one after another and run the question over them."""
    bridge = len(model.adapter.bridge)
    context = assemble(model, question.prefix, packets, room=bridge + len(question.tail) + room)
    filled = context.cache.length
    logits = ask(model, context, question.tail, bridge=model.adapter.bridge)
    return Begun(context, logits, (Pass.behind(filled, bridge + len(question.tail), logits=1),))
