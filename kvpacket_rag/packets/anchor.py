"""Anchors: the fixed context that the model sees before a chunk while the packet of the chunk is encoded.

A chunk that is encoded alone gets the states of a text with nothing before it, with an attention sink of its own. A
chunk that is encoded after a fixed neutral context gets the states of a document in the middle of a prompt. The
anchor's states are not part of the packet, so the anchor costs nothing when answering. It is fixed for a store and does
not depend on the prompt.
"""

from __future__ import annotations

from enum import StrEnum

from kvpacket_rag.packets.adapter import Adapter

__all__ = ["PASSAGES", "Anchor", "default_anchors"]

PASSAGES = (
    """\
The Marlow Bridge is a stone road bridge over the River Teld in the county of Ansbury. It was designed by the \
engineer Thomas Aldwin and opened on 14 May 1862, after four years of work. The bridge has five arches and is \
184 metres long. During the flood of 1903 the second pier was damaged and had to be rebuilt. Since 1978 it has \
been closed to lorries of more than 7.5 tonnes, and about 2,300 vehicles cross it every day.""",
    """\
Helena Brandt (3 March 1894 – 19 October 1961) was a botanist and teacher. She was born in Karlshof, the second \
of six children, and studied in Vienna and Leiden. In 1927 she joined the expedition to the Selva plateau, where \
she described 41 species of moss. Her best known book, The Green Floor, appeared in 1935 and was translated into \
nine languages. A street in her home town is named after her.""",
    """\
The term tariff band refers to a group of goods that are charged at the same rate. In most systems there are \
between three and eight bands. Goods of the first band, such as bread, milk and medicine, are free of charge, \
while those of the last band are charged at up to 30 percent. Critics say that the bands are hard to tell apart; \
supporters answer that a single rate would cost poor households more than twice as much.""",
)
"""Neutral passages about a place, a person and a term that do not exist, in the style of reference works."""


class Anchor(StrEnum):
    """Kinds of anchor."""

    PASSAGES = "passages"
    """The opening of the default prompt and three neutral passages, for chunks that follow other chunks. It is the
    default for models without a trained anchor."""
    OPENING = "opening"
    """Only the opening of the default prompt, for the chunk that comes first. It is the default for that chunk."""
    TRAINED = "trained"
    """The opening and the embeddings that an adapter learned to replace the passages."""
    CORPUS = "corpus"
    """The opening and passages from the store's own documents, which `kvpacket tune-anchor` selects."""
    NONE = "none"
    """No anchor. Every chunk is encoded alone, as in the KV Packet paper (arXiv 2604.13226)."""


def default_anchors(adapter: Adapter | None) -> tuple[Anchor, Anchor]:
    """Return the default anchors of the first chunk and of the other chunks: those with which the adapter was trained.

    Without an adapter, these are the opening and the neutral passages. They are also used if the adapter's card names
    no anchors, but then the adapter's own anchor, if it has one, replaces the neutral passages.
    """
    if adapter is None:
        return Anchor.OPENING, Anchor.PASSAGES
    first, later = adapter.card.anchors
    later = later or (Anchor.TRAINED if len(adapter.anchor) else Anchor.PASSAGES)
    return Anchor(first or Anchor.OPENING), Anchor(later)
