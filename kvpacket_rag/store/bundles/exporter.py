"""Exports a store, or the changes in it, to one file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import sqlalchemy as sa

from kvpacket_rag.errors import InputError, NotFoundError, StoreError
from kvpacket_rag.store.blobs.folder import durable_file
from kvpacket_rag.store.bundles.format import LINES, ROWS, open_bundle, write_bundle
from kvpacket_rag.store.bundles.signing import signature
from kvpacket_rag.store.configuration import read_adapter
from kvpacket_rag.store.database.database import Database, parts, read_fact
from kvpacket_rag.store.database.schema import chunks, documents, fingerprints, packets
from kvpacket_rag.store.packet_store import PacketStore
from kvpacket_rag.store.removal import hint

__all__ = ["ExportReport", "export"]


@dataclass(frozen=True)
class ExportReport:
    """Counts of what a bundle holds."""

    documents: int
    removed: int
    """Documents that were removed from the store since the earlier bundle."""
    chunks: int
    packets: int
    bytes: int
    """Size of the bundle."""


def export(
    database: Database,
    store: PacketStore,
    path: Path,
    *,
    only: Sequence[str] | None = None,
    since: Path | None = None,
    sign: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write documents with their chunks, vectors and packets to one file. It replaces an older file once it is whole.

    only: ids of documents; default all. since: an earlier bundle; unchanged documents are left out, and an import of
    the new bundle removes documents that were removed since. sign: a private key with which to sign the bundle.
    progress: called with (packets written, packets in total). Raises `NotFoundError` for an unknown id or a store
    without documents, `DamagedError` for a damaged packet.
    """
    if only is not None and since is not None:
        raise InputError("Give either documents to export or an earlier bundle, not both.")
    before = _documents_of(since) if since is not None else {}
    with ExitStack() as stack:
        sections = {key: stack.enter_context(tempfile.TemporaryFile()) for key in (*LINES, "vectors", "adapter")}
        with database.reading() as connection:
            about = {key: read_fact(connection, key) for key in ("settings", "fingerprint")} | {
                "since": since is not None
            }
            chosen, gone = _choose(connection, only, before)
            _write(sections["documents"], ({key: row._mapping[key] for key in ROWS["documents"]} for row in chosen))
            _write(sections["removed"], ({"name": name} for name in gone))
            count, contents = _write_chunks(connection, [(row.id, row.name) for row in chosen], sections)
            rows = _packet_rows(connection, contents)
            _write_packets(connection, rows, sections)
            sections["adapter"].write(read_adapter(connection) or b"")
        signing = None if sign is None else partial(signature, sign)
        with durable_file(path) as file:
            write_bundle(file, about, sections, _blobs(store, rows, progress), sum(row.bytes for row in rows), signing)
    return ExportReport(len(chosen), len(gone), count, len(rows), path.stat().st_size)


def _documents_of(bundle: Path) -> dict[str, str]:
    """Return the content hashes of the documents of a bundle, by id."""
    with open_bundle(bundle) as reader:
        reader.check()
        return {row["name"]: row["content"] for row in reader.rows("documents")}


def _choose(
    connection: sa.Connection, only: Sequence[str] | None, before: Mapping[str, str]
) -> tuple[list[Any], list[str]]:
    """Return the rows of the documents to export, and the ids of those removed since the earlier bundle."""
    present = {row.name: row for row in connection.execute(sa.select(documents).order_by(documents.c.name))}
    if not present:
        raise NotFoundError("The store has no documents to export. Add some with `kvpacket add`.")
    for name in only or ():
        if name not in present:
            raise NotFoundError(f"There is no document {name!r} to export.{hint(connection, name)}")
    wanted = present if only is None else dict.fromkeys(only)
    chosen = [row for name, row in present.items() if name in wanted and before.get(name) != row.content]
    return chosen, sorted(set(before) - set(present))


def _write(file: IO[bytes], rows: Iterable[Mapping[str, Any]]) -> None:
    file.writelines(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n" for row in rows)


def _write_chunks(
    connection: sa.Connection, chosen: Sequence[tuple[int, str]], sections: Mapping[str, IO[bytes]]
) -> tuple[int, set[str]]:
    """Write chunks and vectors. Return the number of chunks and the hashes of their tokens."""
    count, contents = 0, set()
    for number, name in chosen:
        query = sa.select(chunks).where(chunks.c.document_id == number).order_by(chunks.c.ordinal)
        for row in connection.execute(query):
            tokens = np.frombuffer(row.token_ids, "<i4").tolist()
            made = {"document": name, "tokens": tokens, "dimension": len(row.vector) // 4}
            _write(sections["chunks"], [made | {key: row._mapping[key] for key in ROWS["chunks"] if key not in made}])
            sections["vectors"].write(row.vector)
            contents.add(row.content)
            count += 1
    return count, contents


def _packet_rows(connection: sa.Connection, contents: Collection[str]) -> list[Any]:
    found: list[Any] = []
    for part in parts(sorted(contents)):
        found += connection.execute(
            sa.select(packets).where(packets.c.content.in_(part)).order_by(packets.c.key)
        ).fetchall()
    return found


def _write_packets(connection: sa.Connection, rows: Sequence[Any], sections: Mapping[str, IO[bytes]]) -> None:
    at = 0
    for row in rows:
        made = {"offset": at}
        _write(sections["packets"], [made | {key: row._mapping[key] for key in ROWS["packets"] if key not in made}])
        at += row.bytes
    used = {row.fingerprint for row in rows}
    query = sa.select(fingerprints).order_by(fingerprints.c.digest)
    known = (row for row in connection.execute(query) if row.digest in used)
    _write(sections["fingerprints"], ({"digest": r.digest, "fields": r.fields, "anchor": r.anchor} for r in known))


def _blobs(
    store: PacketStore, rows: Sequence[Any], progress: Callable[[int, int], None] | None
) -> Iterator[memoryview]:
    """Yield the bytes of each packet, checked against its checksum."""
    for number, row in enumerate(rows):
        if progress is not None:
            progress(number, len(rows))
        data = store.read(row.key, row.file, row.bytes, row.sha256)
        if data is None:
            raise StoreError(f"Packet {row.key[:12]} was removed or replaced while it was exported. Export again.")
        yield data
    if progress is not None:
        progress(len(rows), len(rows))
