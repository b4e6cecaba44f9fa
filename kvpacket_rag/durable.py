"""Files that are there whole after a crash, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kvpacket_rag.errors import StorageFullError, StoreError

__all__ = ["write_durably"]

TRIES = 5


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, flushed to disk, under a name of its own first; nothing is left behind when that fails.

    Raises `StorageFullError` when the disk is full, `StoreError` when the file cannot be written.
    """
    unfinished = path.with_suffix(".tmp")
    try:
        for _ in range(TRIES):
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            try:
                unfinished.replace(path)
            except FileNotFoundError:  # garbage collection took the unfinished file
                continue
            _sync_folder(path.parent)
            return
        raise OSError(errno.EAGAIN, "the unfinished file was removed again and again")
    except BaseException as error:  # interruptions too leave nothing behind
        unfinished.unlink(missing_ok=True)
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


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; where folders cannot be opened (Windows) the file system does it itself."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
