"""Where the bytes of packets lie: named once, never changed, in a folder or in a store of objects with copies near by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvpacket_rag.durable import write_durably
from kvpacket_rag.errors import DamagedError, StoreError

__all__ = ["Blobs", "FolderBlobs"]


class Blobs(Protocol):
    """Bytes by name. A name is given once: what lies under it is never changed, only removed."""

    name: str
    """What messages call the place."""

    def read(self, file: str, size: int) -> memoryview | None:
        """Bytes of a file that has `size`, which nobody can change afterwards; None if there is none.

        Raises `DamagedError` if it has another size, `StoreError` if it cannot be read.
        """

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write a file that is there whole or not at all. Raises `StorageFullError`, or `StoreError`."""

    def exists(self, file: str) -> bool:
        """Whether there is such a file."""

    def remove(self, files: Iterable[str]) -> None:
        """Remove files; those that are not there are ignored."""

    def files(self) -> Iterator[str]:
        """All files, unfinished ones too."""

    def drop_copy(self, file: str) -> bool:
        """Forget a copy that turned out to be damaged; False if there is none, so that reading again is of no use."""


class FolderBlobs:
    """Files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def read(self, file: str, size: int) -> memoryview | None:
        """Read a file once, into memory of our own."""
        memory: Any = np.empty(size, np.uint8)
        memory.fill(0)  # a first touch from within a system call costs twice as much
        data = memoryview(memory)
        try:
            with (self.folder / file).open("rb", buffering=0) as source:
                got = 0
                while got < size and (n := source.readinto(data[got:])):
                    got += n
                exact = got == size and not source.read(1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.folder / file} cannot be read: {error.strerror or error}.") from error
        if not exact:
            raise DamagedError(
                f"{self.folder / file} has not the {size} bytes that were written. Run `kvpacket verify --repair`."
            )
        return data

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write under another name, flush, rename."""
        write_durably(self.folder / file, data)

    def exists(self, file: str) -> bool:
        """Look for the file."""
        return (self.folder / file).exists()

    def remove(self, files: Iterable[str]) -> None:
        """Remove files. One still open elsewhere (Windows) is left for garbage collection."""
        for file in files:
            try:
                (self.folder / file).unlink(missing_ok=True)
            except PermissionError:
                continue
            except OSError as error:
                raise StoreError(f"{self.folder / file} cannot be removed: {error.strerror or error}.") from error

    def files(self) -> Iterator[str]:
        """Walk the folder."""
        try:
            found = sorted(path for path in self.folder.rglob("*") if path.is_file()) if self.folder.exists() else []
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be listed: {error.strerror or error}.") from error
        for path in found:
            yield path.relative_to(self.folder).as_posix()

    def drop_copy(self, file: str) -> bool:
        """There are no copies."""
        return False
