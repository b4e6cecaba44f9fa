"""Imports a bundle into a store. Everything is checked first, and the store changes in one transaction."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.errors import DamagedError, InputError, KVPacketError, MismatchError, StoreError
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.fingerprint import DEFAULT_NAMESPACE, Fingerprint, content_hash
from kvpacket_rag.store.bundles.format import BundleReader, open_bundle
from kvpacket_rag.store.bundles.signing import check_signature
from kvpacket_rag.store.configuration import read_adapter, write_adapter
from kvpacket_rag.store.database.database import read_fact, write_fact
from kvpacket_rag.store.database.schema import chunks, documents
from kvpacket_rag.store.location import StoreLocation, open_location
from kvpacket_rag.store.packet_store import BlobsLostError, PacketStore, WrittenBlob
from kvpacket_rag.store.removal import delete_document, raise_generation
from kvpacket_rag.store.settings import StoreSettings, merge

__all__ = [
    "CheckedBundle",
    "ImportReport",
    "check_bundle",
    "compare",
    "import_bundle",
    "take_in",
    "write_rows",
    "write_settings",
]

TRIES = 3


@dataclass(frozen=True)
class ImportReport:
    """Counts of what an import changed."""

    added: int
    updated: int
    unchanged: int
    removed: int
    chunks: int
    packets: int
    """Packets that the store did not have."""


@dataclass(frozen=True)
class CheckedBundle:
    """The settings and fingerprints of a bundle."""

    settings: Mapping[str, Any]
    fingerprint: Fingerprint
    known: Mapping[str, tuple[Fingerprint, str]]
    """Fingerprints and their anchors, by digest."""

    def fields(self, digest: str) -> dict[str, Any]:
        """Return the fields of a fingerprint."""
        return asdict(self.known[digest][0])


def import_bundle(
    bundle: str | Path, location: str | Path, *, namespace: str = DEFAULT_NAMESPACE, blobs: str | None = None,
    verify: str | Path | None = None, progress: Callable[[int, int], None] | None = None,
) -> ImportReport:  # fmt: skip
    """Import a bundle into the store at `location`, which is created if there is none.

    See `take_in` and `DocumentStore.open`. Raises `NotFoundError` if there is no bundle, `StoreError` if the store
    cannot be written, and the errors of `take_in`.
    """
    with open_bundle(Path(bundle)):  # a file that is not a bundle must not create a folder
        pass
    place = open_location(location, namespace=namespace, blobs=blobs)
    with contextlib.closing(place):
        return take_in(place, PacketStore(place.database, place.blobs), Path(bundle), progress, verify=verify)


def take_in(
    place: StoreLocation, store: PacketStore, path: Path, progress: Callable[[int, int], None] | None = None, *,
    verify: str | Path | None = None,
) -> ImportReport:  # fmt: skip
    """Import the documents of a bundle, with chunks, vectors and packets. Documents with the same id are replaced.

    Neither model nor embedder is needed. verify: a public key that the signature of the bundle must match.
    progress: called with (bytes of packets checked, bytes in total). Raises `SignatureError` if the signature does not
    match, `DamagedError` if anything is damaged, and `MismatchError`, which names the difference, if bundle and store
    were made with different settings. The store is unchanged then.
    """
    with open_bundle(path) as reader:
        if verify is not None:
            check_signature(reader, verify)
        reader.check()
        found = check_bundle(reader)
        with place.database.reading() as connection:
            compare(connection, place.namespace, place.location, reader, found)
        for _ in range(TRIES):
            blobs: list[WrittenBlob] = []
            try:
                for blob in _packets(store, reader, found, progress):
                    blobs.append(blob)
                return _put_in(place, store, reader, found, blobs)
            except BlobsLostError:
                continue  # another process's garbage collection removed files first
            finally:
                store.discard([blob.file for blob in blobs])
    raise StoreError(f"`kvpacket gc` removed packets of {path} repeatedly during the import. Import it again.")


def _put_in(
    place: StoreLocation, store: PacketStore, reader: BundleReader, found: CheckedBundle, blobs: Sequence[WrittenBlob]
) -> ImportReport:
    """Change the store in one transaction."""
    with place.database.writing() as connection:
        if compare(connection, place.namespace, place.location, reader, found):
            write_settings(connection, reader, found)
        counts, stale = write_rows(connection, reader)
        for digest, (_, anchor) in found.known.items():
            store.insert(connection, [blob for blob in blobs if blob.fingerprint.digest == digest], anchor)
        unused = store.delete_unused(connection, stale)
        raise_generation(connection)
    store.blobs.remove(unused)
    return ImportReport(**counts, packets=sum(1 for blob in blobs if blob.file))


def write_settings(connection: sa.Connection, reader: BundleReader, found: CheckedBundle) -> None:
    """Record the settings of the bundle in a store without documents."""
    write_fact(connection, "settings", dict(found.settings))
    write_fact(connection, "fingerprint", reader.header["fingerprint"])
    if reader.length("adapter"):
        write_adapter(connection, reader.read("adapter"))


def check_bundle(reader: BundleReader) -> CheckedBundle:
    """Return settings and fingerprints of a bundle. Raises `DamagedError` if they are not valid."""
    try:
        settings = {**reader.header["settings"]}
        StoreSettings(**settings)
        known = {}
        for row in reader.rows("fingerprints"):
            fingerprint = Fingerprint(**row["fields"])
            if fingerprint.digest != row["digest"]:
                raise DamagedError(f"The bundle {reader.name} holds a fingerprint that does not match its digest.")
            known[fingerprint.digest] = (fingerprint, row["anchor"])
        return CheckedBundle(settings, Fingerprint(**reader.header["fingerprint"]), known)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, KVPacketError) and not isinstance(error, InputError):
            raise
        raise DamagedError(f"The bundle {reader.name} is damaged: {error}.") from error


def compare(
    connection: sa.Connection, namespace: str, location: str, reader: BundleReader, found: CheckedBundle
) -> bool:
    """Raise `MismatchError` if bundle and store were made differently. Return whether the store has no documents."""
    if found.fingerprint.namespace != namespace:
        raise MismatchError(
            f"The bundle {reader.name} was made under the namespace {found.fingerprint.namespace!r}, but is opened under {namespace!r}. "
            "Packets belong to one namespace. Give the namespace of the bundle.",
            field="namespace", expected=namespace, found=found.fingerprint.namespace,
        )  # fmt: skip
    if connection.execute(sa.select(documents.c.id).limit(1)).first() is None:
        return True
    merge(read_fact(connection, "settings"), found.settings, location)
    expected = Fingerprint(**read_fact(connection, "fingerprint"))
    expected.check(
        found.fingerprint, f"The store at {location} and the bundle {reader.name} hold packets of different kinds"
    )
    own = read_adapter(connection)
    has = "" if own is None else Adapter.from_bytes(own, f"The adapter of {location}").digest
    if bool(has) != bool(reader.length("adapter")):
        raise MismatchError(
            f"The store at {location} {'has an adapter of its own' if has else 'uses the adapter of the package'}, but the bundle "
            f"{reader.name} was made {'without' if has else 'with'} an adapter of its own. Set the same adapter with `kvpacket adapt` first.",
            field="adapter", expected=has, found="",
        )  # fmt: skip
    return False


def _packets(
    store: PacketStore,
    reader: BundleReader,
    found: CheckedBundle,
    progress: Callable[[int, int], None] | None,
) -> Iterator[WrittenBlob]:
    """Check the packets one by one and write those that the store lacks. No row names them yet."""
    total = reader.length("blobs")
    for row in reader.rows("packets"):
        key, at = row["key"], row["offset"]
        if row["fingerprint"] not in found.known:
            raise DamagedError(f"The bundle {reader.name} is damaged: it lacks the fingerprint of packet {key[:12]}.")
        fingerprint, _ = found.known[row["fingerprint"]]
        if progress is not None:
            progress(at, total)
        data = reader.read("blobs", at, row["bytes"])
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise DamagedError(
                f"The bundle {reader.name} is damaged: packet {key[:12]} does not match its checksum. Copy it again."
            )
        packet = codec.decode(data, fingerprint, key[:12])
        if fingerprint.packet_key(packet.content) != key:
            raise DamagedError(f"The bundle {reader.name} holds another packet under the key {key[:12]}.")
        if not store.has(key):
            yield store.write_bytes(packet, fingerprint, data)
    if progress is not None:
        progress(total, total)


def write_rows(connection: sa.Connection, reader: BundleReader) -> tuple[dict[str, int], set[str]]:
    """Insert documents and chunks. Return the counts, and the content hashes whose packets may now be unused."""
    counts = {"added": 0, "updated": 0, "unchanged": 0, "removed": 0, "chunks": 0}
    stale: set[str] = set()
    try:
        for row in reader.rows("removed"):
            if (old := _find(connection, row["name"])) is not None:
                stale |= delete_document(connection, old.id)
                counts["removed"] += 1
        numbers: dict[str, int | None] = {}
        for row in reader.rows("documents"):
            old = _find(connection, row["name"])
            if old is not None and old.content == row["content"]:
                numbers[row["name"]] = None
                counts["unchanged"] += 1
                continue
            if old is not None:
                stale |= delete_document(connection, old.id)
            counts["added" if old is None else "updated"] += 1
            made = connection.execute(sa.insert(documents).values(**{**row, "added": time.time()}))
            numbers[row["name"]] = made.inserted_primary_key[0]  # type: ignore[index]
        counts["chunks"] = _chunks(connection, reader, numbers)
    except (KeyError, TypeError, ValueError, sa.exc.SQLAlchemyError) as error:
        if isinstance(error, KVPacketError):
            raise
        raise DamagedError(f"The bundle {reader.name} is damaged: a row is not valid ({error}).") from error
    return counts, stale


def _find(connection: sa.Connection, name: str) -> Any:
    return connection.execute(sa.select(documents.c.id, documents.c.content).where(documents.c.name == name)).first()


def _chunks(connection: sa.Connection, reader: BundleReader, numbers: Mapping[str, int | None]) -> int:
    """Insert the chunks of documents. Return how many were inserted.

    numbers: row ids of the documents, by name. None leaves out the chunks of a document.
    """
    at = count = 0
    dimension = reader.header["settings"]["dimension"]
    for name, group in groupby(reader.rows("chunks"), key=lambda row: row["document"]):
        made = []
        for row in group:
            if row["dimension"] not in (0, dimension):
                raise ValueError(f"a vector of {row['dimension']} numbers")
            vector = bytes(reader.read("vectors", at, 4 * row["dimension"]))
            at += len(vector)
            if (number := numbers[name]) is not None:
                made.append(_chunk(row, number, vector, reader.name))
        if made:
            connection.execute(sa.insert(chunks), made)
        count += len(made)
    return count


def _chunk(row: Mapping[str, Any], document: int, vector: bytes, name: str) -> dict[str, Any]:
    tokens = tuple(row["tokens"])
    if content_hash(tokens) != row["content"]:
        raise DamagedError(f"The bundle {name} is damaged: the tokens of chunk {row['name']} do not match their hash.")
    kept = {key: row[key] for key in ("name", "ordinal", "start", "stop", "text", "content")}
    return {**kept, "document_id": document, "token_ids": np.asarray(tokens, "<i4").tobytes(), "vector": vector}
