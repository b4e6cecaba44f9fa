"""A store in a schema of a PostgreSQL database (extra `postgres`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, InputError, KVPacketError, StorageFullError, StoreError, require
from kvpacket_rag.store.database.backend import BUSY_SECONDS, WRITE

__all__ = ["PostgreSQL"]


class PostgreSQL:
    """A separate schema in a PostgreSQL database, so that one database can hold many independent stores."""

    def __init__(self, url: sa.URL, schema: str, *, read_only: bool = False) -> None:
        """Raise `MissingDependencyError` if the driver is not installed."""
        require("psycopg", extra="postgres", purpose=f"A store at {url.render_as_string()}")
        if not re.fullmatch(r"[a-z0-9_.-]{1,63}", schema):
            raise InputError(f"A schema name must have 1 to 63 characters of a-z, 0-9, _, . and -; got {schema!r}.")
        self._url, self._schema, self.read_only = url.set(drivername="postgresql+psycopg"), schema, read_only
        self.name = f"{url.render_as_string()} ({schema})"

    def engine(self) -> sa.Engine:
        """Return an engine for the schema. It checks connections before use, because a server may have restarted."""
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
            # Each statement sees what was committed before the lock was taken, and nobody else writes until the end.
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
        """Return whether the schema exists."""
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
        """Create the schema. The tables are created in a write transaction, which waits for other writers."""
        if not self.read_only:
            with engine.execution_options(**{WRITE: "wait"}).begin() as connection:
                connection.exec_driver_sql(f'create schema if not exists "{self._schema}"')
        yield

    def explain(self, error: sa.exc.DBAPIError) -> KVPacketError:
        """Return the error for a code of the SQL standard or of PostgreSQL (appendix A of its manual)."""
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
        """Return no faults: PostgreSQL checks references itself and offers no check of everything."""
        return []

    def size(self, connection: sa.Connection) -> int:
        """Return the bytes of the schema's tables with their indexes."""
        query = sa.text(
            "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = :schema and c.relkind = 'r'"
        )
        return int(connection.execute(query, {"schema": self._schema}).scalar() or 0)
