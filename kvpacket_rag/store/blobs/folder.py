"""Where the bytes of packets lie: named once, never changed, in a folder or in a store of objects with copies near by."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvpacket_rag.errors import DamagedError, StorageFullError, StoreError

__all__ = ["FolderBlobs", "durable_file", "write_durably"]


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


TRIES = 5


class _TakenError(StoreError):
    """Garbage collection took the unfinished file."""


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which is there under its name, flushed to disk, once the block has ended.

    An older one stays until then, and when the block or the disk fails; of a new one nothing is left behind. Raises
    `StorageFullError` when the disk is full, `StoreError` when the file cannot be written.
    """
    unfinished, new = path.with_name(path.name + ".tmp"), not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        try:
            unfinished.replace(path)
        except FileNotFoundError as error:
            raise _TakenError(f"{unfinished} was removed again and again. Try again.") from error
        _sync_folder(path.parent)
    except BaseException as error:  # interruptions too leave nothing behind
        unfinished.unlink(missing_ok=True)
        if new:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"The disk of {path.parent} is full; nothing was stored. Free some space and try again."
            ) from error
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}. Check folder and permissions."
        ) from error


def write_durably(path: Path, data: bytes | bytearray) -> None:
    """Write a `durable_file` at once, again where garbage collection takes it before it is done."""
    for left in reversed(range(TRIES)):
        try:
            with durable_file(path) as out:
                out.write(data)
            return
        except _TakenError:
            if not left:
                raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; where folders cannot be opened (Windows) the file system does it itself."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
