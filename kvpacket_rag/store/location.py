"""Opens the database and the packets of a store, given its folder or database address and its namespace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kvpacket_rag.errors import InputError, MismatchError, NotFoundError, StoreError
from kvpacket_rag.packets.fingerprint import DEFAULT_NAMESPACE
from kvpacket_rag.store.blobs.folder import FolderBlobs
from kvpacket_rag.store.blobs.object_store import DEFAULT_CACHE_BYTES, blobs_at
from kvpacket_rag.store.blobs.protocol import Blobs
from kvpacket_rag.store.database.backend import Backend
from kvpacket_rag.store.database.database import Database, read_fact, write_fact
from kvpacket_rag.store.database.postgresql import PostgreSQL
from kvpacket_rag.store.database.sqlite import SQLite

__all__ = ["StoreLocation", "check_namespace", "open_location"]

STORE_FILE = "store.db"
"""Name of the database file in the folder of a store."""
PACKETS = "packets"
NAMESPACES = "namespaces"
"""Folder of the namespaces other than the default one. Each is a complete store."""
BLOBS = "blobs"
"""The fact that records where packets are stored, if not in the folder."""


@dataclass(frozen=True, eq=False)
class StoreLocation:
    """The database and the packets of an open store."""

    location: str
    """Location with which the store can be opened again, without a password."""
    folder: Path | None
    """Folder of the store, or None if it has none."""
    namespace: str
    database: Database
    blobs: Blobs
    release: Callable[[], None] = lambda: None
    """Called after the database is closed."""

    def close(self) -> None:
        """Close the database; the store cannot be used afterwards."""
        self.database.close()
        self.release()


def check_namespace(name: str) -> str:
    """Return the name. Raises `InputError` if it cannot be a folder, a schema and a prefix everywhere."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9_.-]{0,46}[a-z0-9_-])?", name):
        raise InputError(
            f"A namespace has 1 to 48 characters of a-z, 0-9, _, . and -. It must start with a letter or a digit "
            f"and must not end with a dot; got {name!r}."
        )
    return name


def open_location(
    location: str | Path, *, namespace: str = DEFAULT_NAMESPACE, blobs: str | None = None, create: bool = True,
    blob_options: Mapping[str, Any] | None = None, cache_bytes: int = DEFAULT_CACHE_BYTES, read_only: bool = False,
) -> StoreLocation:  # fmt: skip
    """Open the store of a namespace in a folder or at a database address, or create it.

    Raises `NotFoundError` if there is none and `create` is not set, `InputError` for an address that cannot be used,
    `MismatchError` if packets are stored elsewhere than at `blobs`, and the errors of `Database`.
    """
    check_namespace(namespace)
    create = create and not read_only
    folder = None
    if isinstance(location, str) and re.match(r"[a-z0-9+]+://", location):
        backend, location = _server(location, namespace, read_only=read_only)
    else:
        root = Path(location).absolute()  # stays valid when the process changes its working directory
        if root.is_file():
            raise InputError(
                f"{root} is a file. If it is a bundle, open it with read_only=True, or import it into a store with `kvpacket import`."
            )
        folder = root if namespace == DEFAULT_NAMESPACE else root / NAMESPACES / namespace
        backend, location = SQLite(folder / STORE_FILE, read_only=read_only), str(root)
    if not create and not backend.exists():
        inside = "" if namespace == DEFAULT_NAMESPACE else f" under the namespace {namespace}"
        raise NotFoundError(
            f"There is no store at {location}{inside}. Make one with `kvpacket add {location} PATH...`."
        )
    if folder is not None and create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"No store can be made at {folder}: {error.strerror or error}.") from error
    database = Database(backend)
    try:
        return StoreLocation(
            location, folder, namespace, database,
            _blobs(database, folder, blobs, namespace, blob_options, cache_bytes, location),
        )  # fmt: skip
    except BaseException:
        database.close()
        raise


def _server(address: str, namespace: str, *, read_only: bool) -> tuple[Backend, str]:
    """Return the database backend of an address, and the address without a password."""
    try:
        url = sa.make_url(address)
    except sa.exc.ArgumentError as error:
        raise InputError(
            f"{address} is not a database address: {error}. Give one such as postgresql://host/name."
        ) from error
    if url.get_backend_name() != "postgresql":
        raise InputError(
            f"A store is a folder, or a database at postgresql://…; {url.get_backend_name()}:// is not supported."
        )
    schema = "kvpacket" if namespace == DEFAULT_NAMESPACE else f"kvpacket_{namespace}"
    return PostgreSQL(url, schema, read_only=read_only), url._replace(password=None).render_as_string()


def _blobs(
    database: Database, folder: Path | None, given: str | None, namespace: str, options: Mapping[str, Any] | None,
    cache_bytes: int, location: str,
) -> Blobs:  # fmt: skip
    """Return where packets are stored: as recorded, else as given (which is then recorded), else in the folder."""
    given = None if given is None else given.rstrip("/")
    found = None if given is None else blobs_at(given, namespace, options, cache_bytes)  # refused before it is recorded
    recorded = _recorded(database, given, location)
    if found is not None:
        return found
    if recorded is not None:
        return blobs_at(recorded, namespace, options, cache_bytes)
    if folder is None:
        raise InputError(
            f"A store at {location} needs a place for its packets: blobs='s3://bucket/prefix', or file:///folder for one machine."
        )
    return FolderBlobs(folder / PACKETS)


def _recorded(database: Database, given: str | None, location: str) -> str | None:
    """Return the recorded place of packets, or None for the folder.

    Record `given` if nothing is recorded and there is no packet yet. Raises `MismatchError` if packets are stored
    elsewhere than at `given`.
    """
    with database.reading() as connection:
        recorded: str | None = read_fact(connection, BLOBS)
    if given is not None and recorded is None:
        with database.writing() as connection:
            recorded = read_fact(connection, BLOBS)  # another process may have come first
            if recorded is None and connection.execute(sa.text("select 1 from packets limit 1")).first() is None:
                write_fact(connection, BLOBS, given)
                recorded = given
    if given is not None and given != recorded:
        raise MismatchError(
            f"The store at {location} keeps its packets {'in its folder' if recorded is None else f'at {recorded}'}; {given} is given. "
            "Leave it out, or export the store and import it into a new store there.",
            field=BLOBS, expected=recorded, found=given,
        )  # fmt: skip
    return recorded
