"""The packets of chunks: from memory or disk, or built now."""

from __future__ import annotations

from collections.abc import Sequence

from kvpacket_rag.building import Builder
from kvpacket_rag.chunking import Chunk
from kvpacket_rag.configuration import Configuration
from kvpacket_rag.packet import LoadedPackets
from kvpacket_rag.store import PacketStore

__all__ = ["load_packets"]


def load_packets(
    store: PacketStore, builder: Builder, configuration: Configuration, chunks: Sequence[Chunk]
) -> LoadedPackets:
    """Give the packets of chunks in the order they will stand; those not stored are built, stored and counted.

    Raises `DamagedError` if a stored packet is not what was written.
    """
    prints = [configuration.recipe(place).fingerprint for place in range(len(chunks))]
    keys = [fingerprint.packet_key(chunk.content) for fingerprint, chunk in zip(prints, chunks, strict=True)]
    found = store.get_each(list(zip(keys, prints, strict=True)))
    missing = [place for place, packet in enumerate(found) if packet is None]
    for first in (True, False):
        places = [place for place in missing if (place == 0) is first]
        if places:
            unique = list({chunks[place].content: chunks[place] for place in places}.values())
            built = builder.build_on_demand(unique, configuration.recipe(places[0]))
            for place in places:
                found[place] = built[chunks[place].content]
    return LoadedPackets(tuple(packet for packet in found if packet is not None), len(missing))
