"""A store in a SQLite file: how the file is opened and locked, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from filelock import FileLock, Timeout

from kvpacket_rag.errors import DamagedError, KVPacketError, StorageFullError, StoreError
from kvpacket_rag.store.database.backend import BUSY_SECONDS, WRITE

__all__ = ["SQLite"]


class SQLite:
    """A SQLite database file."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.name, self.read_only = path, str(path), read_only

    def engine(self) -> sa.Engine:
        """Return an engine for the file. In a read-only folder, it opens the file as it is, without a journal."""
        database, query = str(self.path), dict[str, str]()
        if self.read_only:
            query = {"mode": "ro", "uri": "true"}
            if not os.access(self.path.parent, os.W_OK):
                query["immutable"] = "1"
            database = self.path.as_uri()
        address = sa.URL.create("sqlite", database=database, query=query)
        engine = sa.create_engine(address, connect_args={"timeout": BUSY_SECONDS}, pool_size=16, max_overflow=64)
        sa.event.listen(engine, "connect", self._configure)
        sa.event.listen(engine, "begin", self._begin)
        return engine

    def _configure(self, connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin in `_begin`, and nowhere else
        cursor = connection.cursor()
        if not self.read_only:
            cursor.execute("pragma journal_mode=wal")
            cursor.execute("pragma synchronous=full")
        cursor.execute("pragma foreign_keys=on")
        cursor.execute(f"pragma busy_timeout={BUSY_SECONDS * 1000}")
        cursor.close()

    @staticmethod
    def _begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get(WRITE)
        if write != "now":
            connection.exec_driver_sql("begin immediate" if write else "begin")
            return
        connection.exec_driver_sql("pragma busy_timeout=0")
        try:
            connection.exec_driver_sql("begin immediate")
        finally:
            connection.exec_driver_sql(f"pragma busy_timeout={BUSY_SECONDS * 1000}")

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    @contextmanager
    def opening(self, _: sa.Engine) -> Iterator[None]:
        """Make processes open the file one after another. The first creates the tables and sets the journal mode."""
        if self.read_only:
            yield
            return
        lock = FileLock(self.path.with_suffix(".lock"), timeout=BUSY_SECONDS)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(
                f"Another process has been opening {self.path} for {BUSY_SECONDS} s. Try again."
            ) from error
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be opened for writing: {error.strerror or error}. Check its folder, or open it with read_only=True."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def explain(self, error: sa.exc.DBAPIError) -> KVPacketError:
        """Return the error for a message, because SQLite distinguishes its errors only by their texts."""
        message = str(error.orig)
        if not isinstance(error, sa.exc.OperationalError):
            return DamagedError(f"{self.path} is damaged: {message}. Restore it from a copy, or rebuild the store.")
        if "full" in message:
            return StorageFullError(
                f"The disk of {self.path} is full; nothing was changed. Free some space and try again."
            )
        if "readonly" in message or "unable to open" in message:
            return StoreError(f"{self.path} cannot be written: {message}. Check its folder and permissions.")
        if "disk I/O" in message:
            return StoreError(f"{self.path} cannot be read or written: {message}. Is its disk full or gone?")
        if "locked" in message:
            return StoreError(f"{self.path} was locked by another process for {BUSY_SECONDS} s. Try again.")
        return DamagedError(f"{self.path} cannot be used: {message}. Restore it from a copy, or rebuild the store.")

    def check(self, connection: sa.Connection) -> list[str]:
        """Return the faults of the integrity check, and references to missing rows."""
        found = [str(row[0]) for row in connection.execute(sa.text("pragma integrity_check"))]
        broken = connection.execute(sa.text("pragma foreign_key_check")).fetchall()
        return [line for line in found if line != "ok"] + [
            f"{row[0]} row {row[1]} refers to a missing {row[2]} row" for row in broken
        ]

    def size(self, _: sa.Connection) -> int:
        """Return the bytes of the file."""
        return self.path.stat().st_size
