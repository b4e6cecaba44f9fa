"""An answer while it is generated: assemble the context, compute the question, decode, and count the cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from torch import Tensor

from kvpacket_rag.answering.answer import AnswerStream, Timings, Usage
from kvpacket_rag.answering.generation import GenerationConfig, Piece, generate
from kvpacket_rag.answering.prompt import PreparedPrompt
from kvpacket_rag.engine.assembly import Context, ask, assemble, prefill
from kvpacket_rag.engine.protocol import ContextCache, Engine
from kvpacket_rag.events import Answered, Events
from kvpacket_rag.packets.packet import Packet

__all__ = ["RunningAnswer", "begin", "report", "stopping", "stream"]


A = TypeVar("A")


@dataclass(eq=False)
class RunningAnswer:
    """A prompt after its prefill, with the pieces of its answer so far."""

    prompt: PreparedPrompt
    context: Context
    logits: Tensor
    """Logits [1, vocabulary] of the prompt's last token. The first token of the answer is chosen from them."""
    usage: Usage
    timings: Timings
    pieces: list[Piece] = field(default_factory=list)

    def take(self, new: Sequence[Piece]) -> None:
        """Add pieces that were just generated, and update the timings."""
        if new:
            self.pieces += new
            self.timings = self.timings.seen(time.perf_counter() - self.prompt.started)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece.text for piece in self.pieces).strip()

    @property
    def cost(self) -> Usage:
        """The usage, including the tokens of the answer so far."""
        return replace(self.usage, answer_tokens=sum(piece.token is not None for piece in self.pieces))


def begin(model: Engine, prompt: PreparedPrompt, new_tokens: int, cache: ContextCache | None = None) -> RunningAnswer:
    """Build the context, with room for `new_tokens`, and compute everything that no packet contains.

    Raises `BudgetError` if the prompt does not fit the model's positions.
    """
    began = time.perf_counter()
    bridge = model.adapter.bridge if prompt.packets else None
    if prompt.method == "full":
        texts = [s.token_ids if isinstance(s, Packet) else s for s in prompt.segments]
        context, logits = prefill(model, prompt.prefix, texts, prompt.tail, room=new_tokens, cache=cache)
        assembled = began
    else:
        room = len(prompt.tail) + (0 if bridge is None else len(bridge)) + new_tokens
        context = assemble(model, prompt.prefix, prompt.segments, room=room, cache=cache)
        model.synchronize()
        assembled = time.perf_counter()
        logits = ask(model, context, prompt.tail, bridge=bridge)
    model.synchronize()
    timings = replace(prompt.timings, assemble=assembled - began, question=time.perf_counter() - assembled)
    from_packets = sum(packet.length for packet in prompt.packets) if prompt.method == "packet" else 0
    usage = replace(
        prompt.usage, packet_tokens=from_packets, prefix_tokens=context.reused - from_packets, computed_tokens=context.computed
    )  # fmt: skip
    return RunningAnswer(prompt, context, logits, usage, timings)


def stopping(config: GenerationConfig, prompt: PreparedPrompt) -> GenerationConfig:
    """Return the generation settings, with the texts that end an answer to this prompt added to `stop`."""
    return replace(config, stop=(*config.stop, *prompt.stop)) if prompt.stop else config


def stream(
    model: Engine,
    answering: RunningAnswer,
    config: GenerationConfig,
    answer: Callable[[RunningAnswer], A],
    events: Events,
) -> AnswerStream[A]:
    """Return a stream that generates the answer piece by piece.

    `answer` builds the answer so far and may be called at any time. `events` emits an `Answered` event at the end.
    """
    pieces: Iterator[Piece] = generate(model, answering.context, answering.logits, stopping(config, answering.prompt))

    def run() -> Generator[str, None, None]:
        try:
            for piece in pieces:
                answering.take([piece])
                if piece.text:
                    yield piece.text
        finally:
            report(events, answering)

    return AnswerStream(run(), lambda: answer(answering))


def report(events: Events, answering: RunningAnswer) -> None:
    """Emit an `Answered` event with the cost of an answer."""
    usage, timings = asdict(answering.cost), asdict(answering.timings)
    events.emit(Answered(answering.prompt.method, usage, timings))
