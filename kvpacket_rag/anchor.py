"""What every chunk sees before it when its packet is made.

A chunk encoded alone is written as if nothing stood before it, with an attention sink of its own; one encoded
behind a fixed neutral context looks like a document in the middle of a prompt. The anchor's states are not part
of the packet, so it costs nothing when answering. It is fixed for a store and does not follow the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from kvpacket_rag.model import PacketModel, PromptStyle
from kvpacket_rag.packet import Packet

__all__ = ["Anchor", "anchor_ids", "encode_in_place"]

PASSAGES = (
    """\
The old mill stands where the two streams meet, a short walk below the village. Its wheel was taken down many \
years ago, and the stones inside are worn smooth. In spring the water rises to the second step of the door, and \
the meadow behind it turns into a shallow pond where herons stand in the morning. In summer the grass is cut twice \
and dried on wooden racks along the fence. Visitors come on Sundays, sit on the low wall and eat what they brought \
with them. The path is narrow but well kept, and a painted sign near the bridge shows the way to the next farm. \
When the first frost comes, the gate is closed until March, and only the keeper walks down once a week to look \
after the roof.""",
    """\
A train leaves the capital every hour and needs two and a half hours to the coast. It stops at four small \
stations, where people with baskets and bicycles get on. The conductor knows most of them by name. Behind the last \
tunnel the sea comes into view on the left, and the children press their faces to the windows. In the evening the \
same train goes back almost empty, with the lights of the villages passing by.""",
)
"""Texts about nothing in particular, so that no document is taken for their continuation."""


class Anchor(StrEnum):
    """Kinds of anchor."""

    PASSAGES = "passages"
    """The opening of the default prompt and two neutral passages: for chunks that stand among others. The default."""
    OPENING = "opening"
    """The opening of the default prompt only: for a chunk that stands first."""
    NONE = "none"
    """Nothing; every chunk is encoded alone, as in the KV Packet paper (arXiv 2604.13226)."""


def anchor_ids(model: PacketModel, anchor: Anchor) -> tuple[int, ...]:
    """Token ids of an anchor for a model."""
    if anchor is Anchor.NONE:
        return ()
    opening = model.text.prompt("?", style=PromptStyle()).prefix
    if anchor is Anchor.OPENING:
        return opening
    passages = (model.text.plain(passage) + model.text.separator for passage in PASSAGES)
    return opening + tuple(token for ids in passages for token in ids)


def encode_in_place(
    model: PacketModel, chunks: Sequence[Sequence[int]], *, first: Anchor, later: Anchor
) -> list[Packet]:
    """Make the packets of chunks for the places they stand in: the first behind its own anchor, the others behind theirs."""
    opening = model.encode(chunks[:1], anchor=anchor_ids(model, first))
    return opening + model.encode(chunks[1:], anchor=anchor_ids(model, later))
