"""The bytes of a bundle: a small header with the length and checksum of every section, then the sections.

    magic "KVPB0002" · length of the header, 8 bytes little-endian · header, JSON · its sha256 · signature · sections, one after another

Everything is checked before it is used: lengths against the file, and every section against its checksum. Only the
header is read into memory as a whole. Nothing in a bundle is a path.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from kvpacket_rag.errors import DamagedError, MismatchError, NotFoundError

__all__ = ["LINES", "ROWS", "BundleReader", "Section", "open_bundle", "write_bundle"]

MAGIC = b"KVPB"
FORMAT = 2
DIGEST = 32
SIGNATURE = 64
"""Bytes of a signature. All are zero if there is none."""
EDGES = 16 + DIGEST + SIGNATURE
"""Bytes before the sections, without the header itself."""
LONGEST_HEADER = 1 << 20
LONGEST_LINE = 1 << 26
PORTION = 1 << 20

ROWS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "fingerprints": {"digest": (str,), "fields": (dict,), "anchor": (str,)},
    "removed": {"name": (str,)},
    "documents": {
        "name": (str,), "title": (str,), "source": (str,), "content": (str,), "metadata": (dict,), "characters": (int,),
        "added": (float, int),
    },
    "chunks": {
        "name": (str,), "document": (str,), "ordinal": (int,), "start": (int,), "stop": (int,), "text": (str,),
        "content": (str,), "tokens": (list,), "dimension": (int,),
    },
    "packets": {
        "key": (str,), "content": (str,), "fingerprint": (str,), "sha256": (str,), "tokens": (int,), "offset": (int,),
        "bytes": (int,),
    },
}  # fmt: skip
"""Sections of JSON lines, with the exact fields of every row and the types of each field."""
LINES = tuple(ROWS)
BYTES = ("vectors", "adapter", "blobs")
"""Sections of bytes: the vectors of all chunks, the store's own adapter, and all packets."""


@dataclass(frozen=True)
class Section:
    """Position of a section, counted from the start of the first one, with its size and checksum."""

    offset: int
    bytes: int
    sha256: str
    """Empty for the packets' bytes, because each packet has its own checksum."""


@dataclass(frozen=True)
class Opening:
    """What comes before the sections, besides the header."""

    start: int
    """Where the sections begin."""
    digest: bytes
    """sha256 of the header, which holds the checksums of everything else."""
    signature: bytes


class BundleReader:
    """A bundle with a checked header."""

    def __init__(
        self, file: IO[bytes], name: str, header: Mapping[str, Any], sections: Mapping[str, Section], opening: Opening
    ) -> None:
        self._file, self.name, self.header, self._sections = file, name, header, sections
        self._start, self.digest, self.signature = opening.start, opening.digest, opening.signature

    def check(self) -> None:
        """Compare every section with its checksum, if it has one. Raises `DamagedError` for the first that differs."""
        for key, section in self._sections.items():
            if section.sha256:
                digest = hashlib.sha256()
                for portion in self._portions(section):
                    digest.update(portion)
                if digest.hexdigest() != section.sha256:
                    raise DamagedError(
                        f"The bundle {self.name} is damaged: its section {key} does not match its checksum. Copy it again."
                    )

    def _portions(self, section: Section) -> Iterator[bytes]:
        self._file.seek(self._start + section.offset)
        left = section.bytes
        while left:
            portion = self._file.read(min(left, PORTION))
            if not portion:
                raise DamagedError(f"The bundle {self.name} ends too early. Copy it again.")
            left -= len(portion)
            yield portion

    def rows(self, key: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a section of JSON lines. Raises `DamagedError` for a row that does not match `ROWS`."""
        section, types = self._sections[key], ROWS[key]
        at = 0
        while at < section.bytes:
            self._file.seek(self._start + section.offset + at)
            line = self._file.readline(min(LONGEST_LINE, section.bytes - at))
            at += len(line)
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DamagedError(
                    f"The bundle {self.name} holds a line in its section {key} that is not JSON."
                ) from error
            fits = isinstance(value, dict) and set(value) == set(types)
            if not fits or not all(type(value[name]) in allowed for name, allowed in types.items()):
                raise DamagedError(
                    f"The bundle {self.name} holds a line in its section {key} with wrong fields or types."
                )
            yield value

    def read(self, key: str, offset: int = 0, count: int | None = None) -> bytearray:
        """Return some bytes of a section, default all. Raises `DamagedError` if it has fewer bytes."""
        section = self._sections[key]
        count = section.bytes - offset if count is None else count
        if offset < 0 or count < 0 or offset + count > section.bytes:
            raise DamagedError(
                f"The bundle {self.name} is damaged: it refers to {count} bytes at offset {offset} of its section {key}, which has {section.bytes} bytes."
            )
        data = bytearray(count)
        self._file.seek(self._start + section.offset + offset)
        if self._file.readinto(data) != count:  # type: ignore[attr-defined]
            raise DamagedError(f"The bundle {self.name} ends too early. Copy it again.")
        return data

    def where(self, key: str) -> tuple[int, int]:
        """Return the position of a section in the file and its number of bytes."""
        return self._start + self._sections[key].offset, self._sections[key].bytes

    def length(self, key: str) -> int:
        """Return the number of bytes of a section."""
        return self._sections[key].bytes


@contextmanager
def open_bundle(path: Path) -> Iterator[BundleReader]:
    """Open a bundle and check its header against the file.

    Raises `NotFoundError` if there is no file, `DamagedError` if it is not a bundle or not complete, `MismatchError`
    for another format.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no bundle {path}. Make one with `kvpacket export`.")
    with path.open("rb") as file:
        yield BundleReader(file, path.name, *_header(file, path))


def _header(file: IO[bytes], path: Path) -> tuple[dict[str, Any], dict[str, Section], Opening]:
    """Return the header, its sections, and what else comes before them."""
    size = path.stat().st_size
    opening = file.read(16)
    if len(opening) < 16 or not opening.startswith(MAGIC) or not opening[4:8].isdigit():
        raise DamagedError(f"{path.name} is not a bundle. Make one with `kvpacket export`.")
    (length,) = struct.unpack("<Q", opening[8:])
    if (found := int(opening[4:8])) != FORMAT:
        raise MismatchError(
            f"The bundle {path.name} has format {found}, but this release reads format {FORMAT}. Export it again.",
            field="format", expected=FORMAT, found=found,
        )  # fmt: skip
    if length > min(LONGEST_HEADER, size - EDGES):
        raise DamagedError(f"The bundle {path.name} is damaged: its header cannot have {length} bytes.")
    text = file.read(length)
    digest, signature = file.read(DIGEST), file.read(SIGNATURE)
    if hashlib.sha256(text).digest() != digest:
        raise DamagedError(f"The bundle {path.name} is damaged: its header does not match its checksum. Copy it again.")
    try:
        header = json.loads(text)
        sections = {key: Section(**value) for key, value in header["sections"].items()}
        whole = all(
            type(number) is int and number >= 0 for s in sections.values() for number in (s.offset, s.bytes)
        ) and set(sections) == {*LINES, *BYTES}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"The bundle {path.name} is damaged: its header cannot be read.") from error
    end = 0
    for section in sorted(sections.values(), key=lambda s: (s.offset, s.bytes)) if whole else ():
        whole = whole and section.offset == end
        end = section.offset + section.bytes
    if not whole or length + EDGES + end != size:
        raise DamagedError(f"The bundle {path.name} is not complete, or its header is damaged. Copy it again.")
    return header, sections, Opening(length + EDGES, digest, signature)


def write_bundle(
    file: IO[bytes],
    about: Mapping[str, Any],
    sections: Mapping[str, IO[bytes]],
    blobs: Iterable[memoryview],
    size: int,
    sign: Callable[[bytes], bytes] | None = None,
) -> None:
    """Write a bundle to a file: `about` in its header, then the sections, then packets of `size` bytes in total.

    sign: returns the signature of the header's sha256.
    """
    table: dict[str, Any] = {}
    at = 0
    for key, source in sections.items():
        hashed, count = hashlib.sha256(), 0
        for portion in _all_of(source):
            hashed.update(portion)
            count += len(portion)
        table[key] = asdict(Section(at, count, hashed.hexdigest()))
        at += count
    table["blobs"] = asdict(Section(at, size, ""))
    header = json.dumps({**about, "sections": table}, sort_keys=True).encode()
    digest = hashlib.sha256(header).digest()
    signature = bytes(SIGNATURE) if sign is None else sign(digest)
    file.write(b"%b%04d%b" % (MAGIC, FORMAT, struct.pack("<Q", len(header))) + header + digest + signature)
    for source in sections.values():
        file.writelines(_all_of(source))
    file.writelines(blobs)


def _all_of(source: IO[bytes]) -> Iterator[bytes]:
    source.seek(0)
    while portion := source.read(PORTION):
        yield portion
