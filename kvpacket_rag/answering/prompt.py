"""Prompts made of packets and text, and the blocks that show them to a reader."""

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
    """A prompt that is ready to be computed."""

    prefix: tuple[int, ...]
    """Everything before the first packet."""
    segments: tuple[Segment, ...]
    """Packets and the text between them. With method "full", token ids only."""
    tail: tuple[int, ...]
    """Everything after the last packet."""
    chunks: tuple[Chunk, ...]
    """The chunks whose packets or texts are the segments, in order."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer, in addition to the model's own end tokens."""
    method: Method = "packet"
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    """Durations of the steps so far."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def packets(self) -> list[Packet]:
        """The packets among the segments."""
        return [segment for segment in self.segments if isinstance(segment, Packet)]

    @property
    def length(self) -> int:
        """Slots of the whole prompt, without the adapter's bridge."""
        between = (s.length if isinstance(s, Packet) else len(s) for s in self.segments)
        return len(self.prefix) + sum(between) + len(self.tail)


@dataclass(frozen=True)
class Block:
    """A piece of the prompt that the model sees, and whether its states are reused."""

    kind: Literal["prefix", "packet", "text", "question"]
    """The text before the documents ("prefix"), a packet, text without a packet, or the text after the documents."""
    text: str
    """The text, with special tokens."""
    tokens: int
    """Slots in the context. For a packet, they include the adapter's header and trailer. The bridge is not counted."""
    reused: bool
    """Whether the states are reused instead of computed for this question.

    Packets are reused, and so is the prefix, which is computed once and cached. With method "full", nothing is reused.
    """
    chunk: Chunk | None = None
    """The chunk whose packet or text this block is."""


def blocks(model: Engine, prompt: PreparedPrompt) -> tuple[Block, ...]:
    """Return what the model would see, split at the borders of packets.

    The blocks are the prefix, packets and texts in order, and the question.
    """
    kept = prompt.method == "packet"
    chunks = iter(prompt.chunks)
    # With full prefill, the text of a chunk and the text between chunks cannot be told apart. The chunks are therefore
    # known only if there is no text between them.
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
    """Return a prompt as text, with the borders of packets marked."""

    def marked(block: Block) -> str:
        of = f" {block.chunk.id} · {block.chunk.document}" if block.kind == "packet" and block.chunk else ""
        return f"[{block.kind}{of} · {block.tokens} tokens]\n{block.text}"

    return "\n".join(map(marked, prompt))
