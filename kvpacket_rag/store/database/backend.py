"""What every kind of database offers a store."""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa

from kvpacket_rag.errors import KVPacketError

__all__ = ["BUSY_SECONDS", "WRITE", "Backend"]


BUSY_SECONDS = 60
"""How long a writer waits for another."""


WRITE = "kvpacket_write"
"""Option of a connection whose transaction writes: "wait" for another writer, or "now"."""


class Backend(Protocol):
    """One kind of database."""

    name: str
    """What messages call the database."""
    read_only: bool

    def engine(self) -> sa.Engine:
        """Connections whose transactions begin as `WRITE` says: writers hold the write lock from their start."""

    def exists(self) -> bool:
        """Whether there is a store, without making one."""

    def opening(self, engine: sa.Engine) -> Any:
        """A block during which no other process makes or changes the tables."""

    def explain(self, error: sa.exc.DBAPIError) -> KVPacketError:
        """What an error of the driver means."""

    def check(self, connection: sa.Connection) -> list[str]:
        """What the database finds wrong with itself."""

    def size(self, connection: sa.Connection) -> int:
        """Bytes of the tables."""
