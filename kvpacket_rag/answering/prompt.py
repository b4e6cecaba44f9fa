"""From a prompt of text and packets to an answer: assemble, read the question, generate, and say what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvpacket_rag.answering.answer import Timings, Usage
from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.engine.assembly import Method, Segment
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.packets.packet import Packet

__all__ = ["Block", "PreparedPrompt", "blocks", "show"]


@dataclass(frozen=True, eq=False)
class PreparedPrompt:
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


def blocks(model: Engine, prompt: PreparedPrompt) -> tuple[Block, ...]:
    """Divide what the model would see at the borders of packets: prefix, packets and texts in order, question."""
    kept = prompt.method == "packet"
    chunks = iter(prompt.chunks)
    # With full prefill nothing tells the text of a chunk from text between chunks, unless there is none between.
    known = not kept and len(prompt.segments) == len(prompt.chunks)

    def decode(ids: Sequence[int]) -> str:
        return model.text.decode(ids, skip_special=False)

    def block(segment: Segment) -> Block:
        if isinstance(segment, Packet):
            return Block("packet", decode(segment.token_ids), segment.length, kept, next(chunks))
        return Block("text", decode(segment), len(segment), False, next(chunks) if known else None)

    return (
        Block("prefix", decode(prompt.prefix), len(prompt.prefix), kept),
        *map(block, prompt.segments),
        Block("question", decode(prompt.tail), len(prompt.tail), False),
    )


def show(prompt: Sequence[Block]) -> str:
    """Write a prompt down, with the borders of packets marked."""

    def marked(block: Block) -> str:
        of = f" {block.chunk.id} · {block.chunk.document}" if block.kind == "packet" and block.chunk else ""
        return f"[{block.kind}{of} · {block.tokens} tokens]\n{block.text}"

    return "\n".join(map(marked, prompt))
