"""Packet files in a folder. Each file is written once and never changed."""

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
    """Files in a folder and its subfolders."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def read(self, file: str, size: int) -> memoryview | None:
        """Read a file in one pass into newly allocated memory."""
        memory: Any = np.empty(size, np.uint8)
        memory.fill(0)  # a first access from within the system call would cost twice as much
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
                f"{self.folder / file} does not have the {size} bytes that were written. Run `kvpacket verify --repair`."
            )
        return data

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write the file under a temporary name, flush it and rename it."""
        write_durably(self.folder / file, data)

    def exists(self, file: str) -> bool:
        """Return whether the file exists."""
        return (self.folder / file).exists()

    def remove(self, files: Iterable[str]) -> None:
        """Remove files. A file that is still open elsewhere (Windows) is left for garbage collection."""
        for file in files:
            try:
                (self.folder / file).unlink(missing_ok=True)
            except PermissionError:
                continue
            except OSError as error:
                raise StoreError(f"{self.folder / file} cannot be removed: {error.strerror or error}.") from error

    def files(self) -> Iterator[str]:
        """Yield all files in the folder."""
        try:
            found = sorted(path for path in self.folder.rglob("*") if path.is_file()) if self.folder.exists() else []
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be listed: {error.strerror or error}.") from error
        for path in found:
            yield path.relative_to(self.folder).as_posix()

    def drop_copy(self, file: str) -> bool:
        """Return False, because there are no cached copies."""
        return False


TRIES = 5


class _TakenError(StoreError):
    """Garbage collection removed the unfinished file."""


@contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. It gets its name, flushed to disk, when the block ends.

    An older file of that name stays until then. It also stays if the block or the disk fails; a new file leaves nothing
    behind then. Raises `StorageFullError` if the disk is full, `StoreError` if the file cannot be written.
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
            raise _TakenError(f"Another process removed {unfinished} repeatedly. Try again.") from error
        _sync_folder(path.parent)
    except BaseException as error:  # an interruption, too, must leave nothing behind
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
    """Write all of a `durable_file`, and retry if garbage collection removes it before it is finished."""
    for left in reversed(range(TRIES)):
        try:
            with durable_file(path) as out:
                out.write(data)
            return
        except _TakenError:
            if not left:
                raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Where folders cannot be opened (Windows), the file system does it itself."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
