"""Making packets anew after the way they are made has changed, or after some were lost."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kvpacket_rag.building import Builder
from kvpacket_rag.configuration import Configuration
from kvpacket_rag.database import Database, parts
from kvpacket_rag.retrieval import Retrieval
from kvpacket_rag.schema import chunks as chunk_table
from kvpacket_rag.schema import packets as packet_table
from kvpacket_rag.store import PacketStore

__all__ = ["drop_other_packets", "rebuild_missing"]

PORTION = 16
"""Chunks built in one go: what an interruption may cost."""


def rebuild_missing(
    database: Database,
    store: PacketStore,
    retrieval: Retrieval,
    configuration: Configuration,
    place: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Build the packets for a place of all chunks that have none as they are made now; what was built counts when interrupted.

    progress: called with (packets built, packets to build).
    """
    recipe = configuration.recipe(place)
    packed = sa.exists().where(
        packet_table.c.content == chunk_table.c.content, packet_table.c.fingerprint == recipe.fingerprint.digest
    )
    with database.reading() as connection:
        ids = list(connection.execute(sa.select(chunk_table.c.id).where(~packed)).scalars())
    done = 0
    for part in parts(ids, PORTION):
        if progress is not None:
            progress(done, len(ids))
        chunks = {chunk.content: chunk for chunk in retrieval.chunks(part)}
        Builder(database, store, configuration).build_on_demand(list(chunks.values()), recipe)
        done += len(part)
    if progress is not None:
        progress(done, len(ids))


def drop_other_packets(database: Database, store: PacketStore, configuration: Configuration) -> None:
    """Delete packets that were made in another way than packets are made now."""
    kept = [configuration.recipe(place).fingerprint.digest for place in (0, 1)]
    query = sa.select(packet_table.c.key, packet_table.c.file).where(packet_table.c.fingerprint.not_in(kept))
    with database.writing() as connection:
        rows = connection.execute(query).fetchall()
        connection.execute(sa.delete(packet_table).where(packet_table.c.fingerprint.not_in(kept)))
    store.forget()
    store.unlink(row.file for row in rows)
