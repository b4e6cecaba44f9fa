"""Opens and migrates the database of a store, and provides read and write transactions.

Write transactions take the write lock at their start. What a transaction has read therefore cannot change before it
writes, and two processes wait for each other instead of failing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, KVPacketError, MismatchError, ReadOnlyError, StoreError
from kvpacket_rag.store.database import schema
from kvpacket_rag.store.database.backend import WRITE, Backend

__all__ = ["Database", "parts", "read_fact", "write_fact"]

HEAD = "0003"
"""Newest migration of the tables."""
T = TypeVar("T")
_UPGRADING = threading.Lock()  # Alembic keeps the running migration in a global variable


class Database:
    """Transactions on the database of a store. Threads and processes may use it at the same time."""

    def __init__(self, backend: Backend) -> None:
        """Open the database, and create or migrate its tables.

        Raises `DamagedError` if it is not a database, `MismatchError` if a newer release wrote it, `StoreError` if it
        cannot be reached or written.
        """
        self._backend, self.name, self.read_only = backend, backend.name, backend.read_only
        self._engine, self._closed = backend.engine(), False
        self.dialect = self._engine.dialect.name
        """The dialect of SQL: sqlite or postgresql."""
        # Connections are closed even without `close`: nobody closes a store that a component opened from a folder.
        self._dispose = weakref.finalize(self, self._engine.dispose)
        try:
            with _UPGRADING, self._errors(), backend.opening(self._engine):
                self._upgrade()
        except OSError as error:
            self.close()
            raise StoreError(
                f"{self.name} cannot be opened: {error.strerror or error}. Check that this process may open more files, and try again."
            ) from error
        except BaseException:
            self.close()
            raise

    def _upgrade(self) -> None:
        revision = self._revision()
        if revision == HEAD:
            return
        if revision is not None and revision > HEAD:
            raise MismatchError(
                f"{self.name} was written by a newer release (tables {revision}, this release knows {HEAD}). Update kvpacket-rag.",
                field="tables",
                expected=HEAD,
                found=revision,
            )
        if self.read_only:
            raise StoreError(f"{self.name} has no tables of this release. Open it once without read_only.")
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
        """Open a transaction that sees one state of the database throughout."""
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[sa.Connection]:
        """Open a transaction that holds the write lock. It commits at the end and rolls back on any exception.

        wait: whether to wait for another writer; if not, `StoreError` is raised at once if there is one.
        """
        if self.read_only:
            raise ReadOnlyError(f"{self.name} was opened with read_only=True; nothing is written to it.")
        with self._errors(), self._engine.execution_options(**{WRITE: "wait" if wait else "now"}).begin() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"{self.name} was closed. Open the store again.")
        try:
            yield
        except sa.exc.IntegrityError:
            raise
        except sa.exc.DBAPIError as error:
            raise self._backend.explain(error) from error
        except ValueError as error:  # a JSON column that does not hold JSON
            if isinstance(error, KVPacketError):
                raise
            raise DamagedError(f"{self.name} holds a damaged value: {error}. Restore it from a copy.") from error

    def check(self) -> list[str]:
        """Return the faults that the database finds in itself."""
        with self.reading() as connection:
            return self._backend.check(connection)

    def size(self, connection: sa.Connection) -> int:
        """Return the bytes of the database."""
        return self._backend.size(connection)

    def close(self) -> None:
        """Close all connections. Later use raises `StoreError`."""
        self._closed = True
        self._dispose()


def read_fact(connection: sa.Connection, key: str, default: Any = None) -> Any:
    """Return the value of a fact about the whole store, or `default`."""
    row = connection.execute(sa.select(schema.facts.c.value).where(schema.facts.c.key == key)).first()
    return default if row is None else row[0]


def write_fact(connection: sa.Connection, key: str, value: Any) -> None:
    """Set a fact about the whole store."""
    changed = connection.execute(sa.update(schema.facts).where(schema.facts.c.key == key).values(value=value))
    if not changed.rowcount:
        connection.execute(sa.insert(schema.facts).values(key=key, value=value))


def parts(values: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """Split a sequence into parts that are short enough for the variables of one SQL statement."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
