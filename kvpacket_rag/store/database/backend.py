"""The protocol of the database backends of a store."""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa

from kvpacket_rag.errors import KVPacketError

__all__ = ["BUSY_SECONDS", "WRITE", "Backend"]


BUSY_SECONDS = 60
"""Seconds for which a writer waits for another writer."""


WRITE = "kvpacket_write"
"""Option of a connection whose transaction writes. "wait" waits for another writer, "now" fails if there is one."""


class Backend(Protocol):
    """A database backend."""

    name: str
    """Name of the database in messages."""
    read_only: bool

    def engine(self) -> sa.Engine:
        """Return an engine whose transactions begin as `WRITE` says. Writers hold the write lock from the start."""

    def exists(self) -> bool:
        """Return whether there is a store, without creating one."""

    def opening(self, engine: sa.Engine) -> Any:
        """Return a context manager during which no other process creates or changes the tables."""

    def explain(self, error: sa.exc.DBAPIError) -> KVPacketError:
        """Return the error of this package for an error of the driver."""

    def check(self, connection: sa.Connection) -> list[str]:
        """Return the faults that the database finds in itself."""

    def size(self, connection: sa.Connection) -> int:
        """Return the bytes of the tables."""
