"""Files that are there whole after a crash, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvpacket_rag.errors import StorageFullError, StoreError

__all__ = ["durable_file", "write_durably"]

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
