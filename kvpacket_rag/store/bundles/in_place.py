"""Opens a bundle without an import: rows go into a temporary database, packets are read from the mapped file."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, InputError, ReadOnlyError
from kvpacket_rag.store.bundles.format import BundleReader, open_bundle
from kvpacket_rag.store.bundles.importer import check_bundle, compare, write_rows, write_settings
from kvpacket_rag.store.bundles.signing import check_signature
from kvpacket_rag.store.database.database import Database
from kvpacket_rag.store.database.schema import fingerprints, packets
from kvpacket_rag.store.database.sqlite import SQLite
from kvpacket_rag.store.location import STORE_FILE, StoreLocation

__all__ = ["open_bundled"]


class BundleBlobs:
    """The packets of a bundle. Each is named by its offset."""

    def __init__(self, path: Path, start: int, count: int) -> None:
        self.name, self._start, self._count = str(path), start, count
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, file: str, size: int) -> memoryview | None:
        """Return a copy of the bytes, because the file may change later and checked bytes must not."""
        at = int(file)
        if at + size > self._count:
            raise DamagedError(
                f"The bundle {self.name} has fewer than {size} bytes at offset {at} of its packets. Copy it again."
            )
        return memoryview(bytearray(self._map[self._start + at : self._start + at + size]))

    def exists(self, file: str) -> bool:
        """Return True, because a bundle holds every packet that its rows name."""
        return True

    def files(self) -> Iterator[str]:
        """Yield nothing, because a bundle holds no packets besides those that its rows name."""
        return iter(())

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Raise `ReadOnlyError`, because a bundle is read-only."""
        raise ReadOnlyError(f"{self.name} is a bundle, which is read-only. Import it into a store.")

    def remove(self, files: Iterable[str]) -> None:
        """Do nothing. Building a packet for an answer calls this without files."""

    def drop_copy(self, file: str) -> bool:
        """Return False, because there are no cached copies."""
        return False

    def close(self) -> None:
        """Close the mapped file."""
        self._map.close()


def open_bundled(path: Path, namespace: str, *, verify: str | Path | None = None) -> StoreLocation:
    """Open a bundle as a read-only store.

    verify: a public key that the signature of the bundle must match. Raises the errors of `importer.take_in`, and
    `InputError` for a bundle that holds only changes.
    """
    folder = tempfile.TemporaryDirectory(prefix="kvpacket-", ignore_cleanup_errors=True)
    try:
        with open_bundle(path) as reader:
            if verify is not None:
                check_signature(reader, verify)
            if reader.header.get("since"):
                raise InputError(
                    f"{path.name} holds only what has changed since another bundle. Import both into a store, one after the other."
                )
            reader.check()
            _fill(Path(folder.name), reader, namespace)
            start, count = reader.where("blobs")
        blobs = BundleBlobs(path, start, count)
        database = Database(SQLite(Path(folder.name) / STORE_FILE, read_only=True))
    except BaseException:
        folder.cleanup()
        raise

    def close() -> None:
        blobs.close()
        folder.cleanup()

    return StoreLocation(str(path), None, namespace, database, blobs, close)


def _fill(folder: Path, reader: BundleReader, namespace: str) -> None:
    """Write a database with the rows of a bundle."""
    found = check_bundle(reader)
    database = Database(SQLite(folder / STORE_FILE))
    try:
        with database.writing() as connection:
            compare(connection, namespace, reader.name, reader, found)
            write_settings(connection, reader, found)
            write_rows(connection, reader)
            for digest, (_, anchor) in found.known.items():
                row = {"digest": digest, "fields": found.fields(digest), "anchor": anchor}
                connection.execute(sa.insert(fingerprints).values(row))
            rows = [_packet(row) for row in reader.rows("packets")]
            if rows:
                connection.execute(sa.insert(packets), rows)
    except sa.exc.SQLAlchemyError as error:
        raise DamagedError(f"The bundle {reader.name} is damaged: a row is not valid ({error}).") from error
    finally:
        database.close()


def _packet(row: dict[str, object]) -> dict[str, object]:
    kept = {key: value for key, value in row.items() if key != "offset"}
    return {**kept, "file": str(row["offset"]), "created": 0.0, "used": 0.0}
