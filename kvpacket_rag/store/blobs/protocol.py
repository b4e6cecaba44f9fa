"""The protocol of every place that stores the bytes of packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

__all__ = ["Blobs"]


class Blobs(Protocol):
    """Bytes by name. A name is used once: its bytes are never changed, only removed."""

    name: str
    """Name of the place in messages."""

    def read(self, file: str, size: int) -> memoryview | None:
        """Return the `size` bytes of a file, which nobody can change afterwards, or None if there is no such file.

        Raises `DamagedError` if it has another size, `StoreError` if it cannot be read.
        """

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write a file, which then exists whole or not at all. Raises `StorageFullError` or `StoreError`."""

    def exists(self, file: str) -> bool:
        """Return whether there is such a file."""

    def remove(self, files: Iterable[str]) -> None:
        """Remove files; missing ones are ignored."""

    def files(self) -> Iterator[str]:
        """Yield all files, including unfinished ones."""

    def drop_copy(self, file: str) -> bool:
        """Remove a damaged cached copy. Return False if there is none; then it is no use to read the file again."""
