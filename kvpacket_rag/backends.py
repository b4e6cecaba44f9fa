"""Database servers and files behind a store: how each is opened, locked, and explains its errors."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from filelock import FileLock, Timeout

from kvpacket_rag.errors import (
    DamagedError,
    InputError,
    KVPacketError,
    StorageFullError,
    StoreError,
    require,
)

__all__ = ["BUSY_SECONDS", "WRITE", "Backend", "PostgreSQL", "SQLite"]

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


class SQLite:
    """A database file."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.name, self.read_only = path, str(path), read_only

    def engine(self) -> sa.Engine:
        """Connections to the file. One that can only be read is opened as it stands, without a journal beside it."""
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
        """Look for the file."""
        return self.path.exists()

    @contextmanager
    def opening(self, _: sa.Engine) -> Iterator[None]:
        """Processes open one after another: the first makes the tables, and switches the file to its journal mode."""
        if self.read_only:
            yield
            return
        lock = FileLock(self.path.with_suffix(".lock"), timeout=BUSY_SECONDS)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(
                f"{self.path} is being opened by another process for {BUSY_SECONDS} s. Try again."
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
        """SQLite tells its errors apart by their texts only."""
        message = str(error.orig)
        if not isinstance(error, sa.exc.OperationalError):
            return DamagedError(f"{self.path} is damaged: {message}. Restore it from a copy, or build the store anew.")
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
        return DamagedError(f"{self.path} cannot be used: {message}. Restore it from a copy, or build the store anew.")

    def check(self, connection: sa.Connection) -> list[str]:
        """Ask for integrity and for references to rows that are not there."""
        found = [str(row[0]) for row in connection.execute(sa.text("pragma integrity_check"))]
        broken = connection.execute(sa.text("pragma foreign_key_check")).fetchall()
        return [line for line in found if line != "ok"] + [
            f"{row[0]} row {row[1]} refers to a missing {row[2]} row" for row in broken
        ]

    def size(self, _: sa.Connection) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size


class PostgreSQL:
    """A schema of its own in a PostgreSQL database, so that one database holds many stores that never meet."""

    def __init__(self, url: sa.URL, schema: str, *, read_only: bool = False) -> None:
        """Raise `MissingDependencyError` without a driver."""
        require("psycopg", extra="postgres", purpose=f"A store at {url.render_as_string()}")
        if not re.fullmatch(r"[a-z0-9_.-]{1,63}", schema):
            raise InputError(f"A schema's name is of a-z, 0-9, _, . and -; got {schema!r}.")
        self._url, self._schema, self.read_only = url.set(drivername="postgresql+psycopg"), schema, read_only
        self.name = f"{url.render_as_string()} ({schema})"

    def engine(self) -> sa.Engine:
        """Connections to the schema, checked before use: a server may have been restarted."""
        engine = sa.create_engine(
            self._url, pool_size=8, max_overflow=56, pool_pre_ping=True, connect_args={"connect_timeout": 10}
        )
        sa.event.listen(engine, "connect", self._configure, insert=True)  # before SQLAlchemy asks for the schema
        sa.event.listen(engine, "begin", self._begin)
        return engine

    def _configure(self, connection: Any, _: Any) -> None:
        connection.autocommit = True
        connection.execute(f'set search_path to "{self._schema}"')
        connection.execute(f"set lock_timeout to '{BUSY_SECONDS}s'")
        connection.autocommit = False

    def _begin(self, connection: sa.Connection) -> None:
        write = connection.get_execution_options().get(WRITE)
        if not write:
            connection.exec_driver_sql("set transaction isolation level repeatable read, read only")
        elif write == "wait":
            # Each statement then sees what was committed before the lock was had; nobody else writes until the end.
            connection.execute(sa.text("select pg_advisory_xact_lock(hashtextextended(:schema, 0))"), self._key)
        elif not connection.execute(
            sa.text("select pg_try_advisory_xact_lock(hashtextextended(:schema, 0))"), self._key
        ).scalar():
            connection.rollback()
            raise StoreError(f"{self.name} is being written by another process.")

    @property
    def _key(self) -> dict[str, str]:
        return {"schema": f"kvpacket {self._schema}"}

    def exists(self) -> bool:
        """Look for the schema."""
        engine = self.engine()
        try:
            with engine.begin() as connection:
                return self._schema in sa.inspect(connection).get_schema_names()
        except sa.exc.DBAPIError as error:
            raise self.explain(error) from error
        finally:
            engine.dispose()

    @contextmanager
    def opening(self, engine: sa.Engine) -> Iterator[None]:
        """Make the schema; the tables are made in a write transaction, which waits for others."""
        if not self.read_only:
            with engine.execution_options(**{WRITE: "wait"}).begin() as connection:
                connection.exec_driver_sql(f'create schema if not exists "{self._schema}"')
        yield

    def explain(self, error: sa.exc.DBAPIError) -> KVPacketError:
        """By the codes of the SQL standard and PostgreSQL (appendix A of its manual)."""
        code, message = getattr(error.orig, "sqlstate", None) or "", str(error.orig).strip().partition("\n")[0]
        if code == "53100":
            return StorageFullError(
                f"The disk of {self.name} is full; nothing was changed. Free some space and try again."
            )
        if code == "55P03":
            return StoreError(f"{self.name} was locked by another process for {BUSY_SECONDS} s. Try again.")
        if code.startswith("22") or isinstance(error, sa.exc.DataError):
            return InputError(f"{self.name} cannot hold a value: {message}. Change it in the document.")
        if code.startswith("XX"):
            return DamagedError(f"{self.name} is damaged: {message}. Restore it from a backup.")
        if code in ("25006", "42501"):
            return StoreError(f"{self.name} cannot be written: {message}. Check the user's rights.")
        return StoreError(
            f"{self.name} cannot be used: {message}. Check that the server runs and the address is right."
        )

    def check(self, _: sa.Connection) -> list[str]:
        """PostgreSQL checks references itself, and offers no check of everything."""
        return []

    def size(self, connection: sa.Connection) -> int:
        """Bytes of the schema's tables with their indexes."""
        query = sa.text(
            "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = :schema and c.relkind = 'r'"
        )
        return int(connection.execute(query, {"schema": self._schema}).scalar() or 0)
