"""Rebuilds packets after the way they are made has changed, or after some were lost."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError
from kvpacket_rag.store.builder import Builder
from kvpacket_rag.store.chunk_rows import StoredChunks
from kvpacket_rag.store.configuration import Configuration
from kvpacket_rag.store.database.database import Database, parts
from kvpacket_rag.store.database.schema import chunks as chunk_table
from kvpacket_rag.store.database.schema import packets as packet_table
from kvpacket_rag.store.integrity import VerifyReport
from kvpacket_rag.store.packet_store import PacketStore

__all__ = ["drop_damaged", "drop_other_packets", "rebuild_missing"]

PORTION = 16
"""Chunks built at a time. An interruption loses at most this many."""


def rebuild_missing(
    database: Database,
    store: PacketStore,
    stored: StoredChunks,
    configuration: Configuration,
    place: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Build the packets that chunks lack for a place in the context. An interruption keeps what was built.

    Packets made in an older way do not count. A store with a limit is filled, but no packet is evicted for one that
    nobody asked for. place: 0 is the first place in a context, 1 any later one.
    progress: called with (packets built, packets to build).
    """
    spec = configuration.packet_spec(place)
    packed = sa.exists().where(
        packet_table.c.content == chunk_table.c.content, packet_table.c.fingerprint == spec.fingerprint.digest
    )
    with database.reading() as connection:
        ids = list(connection.execute(sa.select(chunk_table.c.id).where(~packed)).scalars())
    done = 0
    for part in parts(ids, PORTION):
        if progress is not None:
            progress(done, len(ids))
        chunks = {chunk.content: chunk for chunk in stored.chunks(part)}
        builder = Builder(database, store, configuration)
        if len(builder.build_on_demand(list(chunks.values()), spec, evict=False)) < len(chunks):
            break
        done += len(part)
    if progress is not None:
        progress(done, len(ids))


def drop_other_packets(database: Database, store: PacketStore, configuration: Configuration) -> None:
    """Delete packets that were made in another way than the current one."""
    kept = [configuration.packet_spec(place).fingerprint.digest for place in (0, 1)]
    query = sa.select(packet_table.c.key, packet_table.c.file).where(packet_table.c.fingerprint.not_in(kept))
    with database.writing() as connection:
        rows = connection.execute(query).fetchall()
        connection.execute(sa.delete(packet_table).where(packet_table.c.fingerprint.not_in(kept)))
    store.forget()
    store.blobs.remove(row.file for row in rows)


def drop_damaged(database: Database, store: PacketStore, report: VerifyReport) -> None:
    """Delete the packets that a verification found damaged, and collect garbage.

    Raises `DamagedError` if the database itself is damaged.
    """
    if report.database:
        raise DamagedError(
            f"The database {database.name} is damaged and cannot be repaired: {report.database[0]}. Restore it from a copy."
        )
    with database.writing() as connection:
        for key, _ in report.damaged:
            connection.execute(sa.delete(packet_table).where(packet_table.c.key == key))
    store.forget()
    store.collect_garbage()
