"""From a prompt of text and packets to an answer: assemble, read the question, generate, and say what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeVar

from torch import Tensor

from kvpacket_rag.answer import AnswerStream, Timings, Usage
from kvpacket_rag.assembly import Context, Method, Segment, ask, assemble, prefill
from kvpacket_rag.chunking import Chunk
from kvpacket_rag.events import Answered, Events
from kvpacket_rag.generator import GenerationConfig, Piece, generate
from kvpacket_rag.model import ContextCache, PacketModel
from kvpacket_rag.packet import Packet

__all__ = ["Answering", "Block", "Reading", "blocks", "read", "show", "stopping", "stream", "tell"]

A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Reading:
    """A prompt made ready to be read."""

    prefix: tuple[int, ...]
    """Everything before the first packet."""
    segments: tuple[Segment, ...]
    """Packets, and text between them; only token ids for method "full"."""
    tail: tuple[int, ...]
    """Everything after the last packet."""
    chunks: tuple[Chunk, ...]
    """Whose packets or texts the segments are, in order."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer besides the model's own end tokens."""
    method: Method = "packet"
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    """What it took so far."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def packets(self) -> list[Packet]:
        """The packets among the segments."""
        return [segment for segment in self.segments if isinstance(segment, Packet)]

    @property
    def length(self) -> int:
        """Slots of the whole prompt, the adapter's bridge left out."""
        between = (s.length if isinstance(s, Packet) else len(s) for s in self.segments)
        return len(self.prefix) + sum(between) + len(self.tail)


@dataclass(frozen=True)
class Block:
    """A piece of what the model sees, with where its states come from."""

    kind: Literal["prefix", "packet", "text", "question"]
    """What stands before the documents, a packet, text that is in none, or what stands behind the documents."""
    text: str
    """With special tokens."""
    tokens: int
    """Slots in the context: of a packet, those of the adapter's header and trailer too; the adapter's bridge is not counted."""
    reused: bool
    """Whether its states are not computed for this question: those of packets, and of the prefix, which is computed once
    and kept. With method "full" nothing is."""
    chunk: Chunk | None = None
    """The chunk whose packet or text it is."""


@dataclass(eq=False)
class Answering:
    """A prompt that was read, with the pieces of its answer so far."""

    reading: Reading
    context: Context
    logits: Tensor
    """Of the prompt's last token, [1, vocabulary]: from them comes the answer's first."""
    usage: Usage
    timings: Timings
    pieces: list[Piece] = field(default_factory=list)

    def take(self, new: Sequence[Piece]) -> None:
        """Note pieces that were just generated."""
        if new:
            self.pieces += new
            self.timings = self.timings.seen(time.perf_counter() - self.reading.started)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece.text for piece in self.pieces).strip()

    @property
    def cost(self) -> Usage:
        """Where tokens came from, with those of the answer so far."""
        return replace(self.usage, answer_tokens=sum(piece.token is not None for piece in self.pieces))


def read(model: PacketModel, reading: Reading, new_tokens: int, cache: ContextCache | None = None) -> Answering:
    """Make the context, with room for `new_tokens`, and run what no packet holds over it.

    Raises `BudgetError` if it does not fit the model's positions.
    """
    began = time.perf_counter()
    bridge = model.adapter.bridge if reading.packets else None
    if reading.method == "full":
        texts = [s.token_ids if isinstance(s, Packet) else s for s in reading.segments]
        context, logits = prefill(model, reading.prefix, texts, reading.tail, room=new_tokens, cache=cache)
        assembled = began
    else:
        room = len(reading.tail) + (0 if bridge is None else len(bridge)) + new_tokens
        context = assemble(model, reading.prefix, reading.segments, room=room, cache=cache)
        model.synchronize()
        assembled = time.perf_counter()
        logits = ask(model, context, reading.tail, bridge=bridge)
    model.synchronize()
    timings = replace(reading.timings, assemble=assembled - began, question=time.perf_counter() - assembled)
    from_packets = sum(packet.length for packet in reading.packets) if reading.method == "packet" else 0
    usage = replace(
        reading.usage, packet_tokens=from_packets, prefix_tokens=context.reused - from_packets, computed_tokens=context.computed
    )  # fmt: skip
    return Answering(reading, context, logits, usage, timings)


def stopping(config: GenerationConfig, reading: Reading) -> GenerationConfig:
    """The settings of a generation, with the texts at which an answer to this prompt ends."""
    return replace(config, stop=(*config.stop, *reading.stop)) if reading.stop else config


def stream(
    model: PacketModel, answering: Answering, config: GenerationConfig, answer: Callable[[Answering], A], events: Events
) -> AnswerStream[A]:
    """Generate piece by piece; `answer` makes the answer so far, which can be asked for at any time. `events` hear of its end."""
    pieces: Iterator[Piece] = generate(model, answering.context, answering.logits, stopping(config, answering.reading))

    def run() -> Generator[str, None, None]:
        try:
            for piece in pieces:
                answering.take([piece])
                if piece.text:
                    yield piece.text
        finally:
            tell(events, answering)

    return AnswerStream(run(), lambda: answer(answering))


def tell(events: Events, answering: Answering) -> None:
    """Say what an answer cost."""
    usage, timings = asdict(answering.cost), asdict(answering.timings)
    events.emit(Answered(answering.reading.method, usage, timings))


def blocks(model: PacketModel, reading: Reading) -> tuple[Block, ...]:
    """Divide what the model would see at the borders of packets: prefix, packets and texts in order, question."""
    kept = reading.method == "packet"
    chunks = iter(reading.chunks)
    # With full prefill nothing tells the text of a chunk from text between chunks, unless there is none between.
    known = not kept and len(reading.segments) == len(reading.chunks)

    def decode(ids: Sequence[int]) -> str:
        return model.text.decode(ids, skip_special=False)

    def block(segment: Segment) -> Block:
        if isinstance(segment, Packet):
            return Block("packet", decode(segment.token_ids), segment.length, kept, next(chunks))
        return Block("text", decode(segment), len(segment), False, next(chunks) if known else None)

    return (
        Block("prefix", decode(reading.prefix), len(reading.prefix), kept),
        *map(block, reading.segments),
        Block("question", decode(reading.tail), len(reading.tail), False),
    )


def show(prompt: Sequence[Block]) -> str:
    """Write a prompt down, with the borders of packets marked."""

    def marked(block: Block) -> str:
        of = f" {block.chunk.id} · {block.chunk.document}" if block.kind == "packet" and block.chunk else ""
        return f"[{block.kind}{of} · {block.tokens} tokens]\n{block.text}"

    return "\n".join(map(marked, prompt))
