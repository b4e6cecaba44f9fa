"""One SQLite database: opened, brought up to date, read and written in transactions.

Write transactions take the write lock at their start, so that what a transaction has read cannot change before
it writes, and two processes wait for each other instead of failing.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from filelock import FileLock
from sqlalchemy.exc import DatabaseError, OperationalError

from kvpacket_rag import schema
from kvpacket_rag.errors import DamagedError, KVPacketError, MismatchError, StorageFullError, StoreError

__all__ = ["STORE_FILE", "Database", "open_database", "parts", "read_fact", "write_fact"]

BUSY_SECONDS = 60
"""How long a writer waits for another."""
HEAD = "0002"
"""Newest recorded change of the tables."""
WRITE = "kvpacket_write"
T = TypeVar("T")
_UPGRADING = threading.Lock()  # Alembic keeps the migration that runs in a global


STORE_FILE = "store.db"
"""The database in the folder of a store."""


def open_database(folder: Path) -> Database:
    """Open the database of the store in a folder; both are made if they are not there.

    Raises `StoreError` if the folder cannot be made, and what `Database` raises.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"No store can be made at {folder}: {error.strerror or error}.") from error
    return Database(folder / STORE_FILE)


class Database:
    """Transactions on the database of a store. Threads and processes may use it at the same time."""

    def __init__(self, path: Path) -> None:
        """Open or create the database file.

        Raises `DamagedError` if the file is no database, `MismatchError` if a newer release wrote it.
        """
        self.path = path
        address = sa.URL.create("sqlite", database=str(path))
        self._engine = sa.create_engine(address, connect_args={"timeout": BUSY_SECONDS}, pool_size=16, max_overflow=64)
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin)
        # Whoever forgets to close, as a store opened from a folder by a component has nobody to do it.
        self._dispose = weakref.finalize(self, self._engine.dispose)
        try:
            # Processes open one after another: the first makes the tables, and switches the file to its journal mode.
            with _UPGRADING, self._errors(), FileLock(path.with_suffix(".lock"), timeout=BUSY_SECONDS):
                self._upgrade()
        except BaseException:
            self.close()
            raise

    def _upgrade(self) -> None:
        revision = self._revision()
        if revision == HEAD:
            return
        if revision is not None and revision > HEAD:
            raise MismatchError(
                f"{self.path} was written by a newer release (tables {revision}, this release knows {HEAD}). Update kvpacket-rag.",
                field="tables",
                expected=HEAD,
                found=revision,
            )
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        with self.writing() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _revision(self) -> str | None:
        with self._engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(sa.text("select version_num from alembic_version")).scalar()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the database throughout."""
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[sa.Connection]:
        """A transaction that holds the write lock; committed at the end, rolled back on any exception.

        wait: for another writer; if not, `StoreError` is raised at once where there is one.
        """
        with self._errors(), self._engine.execution_options(**{WRITE: "wait" if wait else "now"}).begin() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            message = str(error.orig)
            if "full" in message:
                raise StorageFullError(
                    f"The disk of {self.path} is full; nothing was changed. Free some space and try again."
                ) from error
            if "readonly" in message or "unable to open" in message:
                raise StoreError(
                    f"{self.path} cannot be written: {message}. Check its folder and permissions."
                ) from error
            if "disk I/O" in message:
                raise StoreError(
                    f"{self.path} cannot be read or written: {message}. Is its disk full or gone?"
                ) from error
            if "locked" in message:
                raise StoreError(
                    f"{self.path} was locked by another process for {BUSY_SECONDS} s. Try again."
                ) from error
            raise DamagedError(
                f"{self.path} cannot be used: {message}. Restore it from a copy, or build the store anew."
            ) from error
        except ValueError as error:  # a JSON column that is none
            if isinstance(error, KVPacketError):
                raise
            raise DamagedError(f"{self.path} holds a damaged value: {error}. Restore it from a copy.") from error
        except DatabaseError as error:
            if isinstance(error, sa.exc.IntegrityError):
                raise
            raise DamagedError(
                f"{self.path} is damaged: {error.orig}. Restore it from a copy, or build the store anew."
            ) from error

    def check(self) -> list[str]:
        """Ask the database to check itself; returns what it finds wrong."""
        with self.reading() as connection:
            found = [str(row[0]) for row in connection.execute(sa.text("pragma integrity_check"))]
            broken = connection.execute(sa.text("pragma foreign_key_check")).fetchall()
        return [line for line in found if line != "ok"] + [
            f"{row[0]} row {row[1]} refers to a missing {row[2]} row" for row in broken
        ]

    def close(self) -> None:
        """Close all connections."""
        self._dispose()


def _configure(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # transactions begin in `_begin`, and nowhere else
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode=wal")
    cursor.execute("pragma synchronous=full")
    cursor.execute("pragma foreign_keys=on")
    cursor.execute(f"pragma busy_timeout={BUSY_SECONDS * 1000}")
    cursor.close()


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


def read_fact(connection: sa.Connection, key: str, default: Any = None) -> Any:
    """Value of a fact about the whole store, or `default`."""
    row = connection.execute(sa.select(schema.facts.c.value).where(schema.facts.c.key == key)).first()
    return default if row is None else row[0]


def write_fact(connection: sa.Connection, key: str, value: Any) -> None:
    """Set a fact about the whole store."""
    changed = connection.execute(sa.update(schema.facts).where(schema.facts.c.key == key).values(value=value))
    if not changed.rowcount:
        connection.execute(sa.insert(schema.facts).values(key=key, value=value))


def parts(values: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """Cut a sequence into parts short enough for the variables of one SQL statement."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
