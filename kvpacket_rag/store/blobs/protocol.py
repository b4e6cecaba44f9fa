"""What every place that stores the bytes of packets offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

__all__ = ["Blobs"]


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
