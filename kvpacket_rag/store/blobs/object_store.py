"""Packets in an object store (S3 and anything else fsspec supports), with a local cache of recently used ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kvpacket_rag.engine.settings import Settings
from kvpacket_rag.errors import DamagedError, InputError, MissingDependencyError, StoreError, require
from kvpacket_rag.store.blobs.folder import FolderBlobs, write_durably
from kvpacket_rag.store.blobs.protocol import Blobs

__all__ = ["DEFAULT_CACHE_BYTES", "RemoteBlobs", "blobs_at"]

DEFAULT_CACHE_BYTES = 8 << 30
"""Default limit on the bytes of packets in an object store that are cached on this machine."""
TAKEN_BACK = 0.1
"""Share of the cache that is freed when it is full, so that the folder is not walked for every packet."""


def blobs_at(url: str, below: str, options: Mapping[str, Any] | None, cache_bytes: int) -> Blobs:
    """Return the blobs in the subfolder `below` of a URL: in a folder for file://, else in an object store.

    Raises `InputError` for a URL that fsspec does not know, `MissingDependencyError` if its package is not installed.
    """
    fsspec = require("fsspec", extra="s3", purpose=f"Packets at {url}")
    # Other processes change the objects, and credentials may have changed since a store was last opened.
    uncached = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **{**(options or {}), **uncached})
    except ImportError as error:
        raise MissingDependencyError(
            f"Packets at {url} need a package that is not installed: {error}. For S3: pip install 'kvpacket-rag[s3]'"
        ) from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{url} is not the address of an object store: {error}. Give one such as s3://bucket/prefix."
        ) from error
    if "file" in _protocols(filesystem):
        return FolderBlobs(Path(root) / below)
    return RemoteBlobs(
        filesystem, f"{root.rstrip('/')}/{below}", name=f"{url.rstrip('/')}/{below}", cache_bytes=cache_bytes
    )


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class RemoteBlobs:
    """Objects below a root, with cached copies in a folder on this machine, limited by bytes."""

    def __init__(self, filesystem: Any, root: str, *, name: str, cache_bytes: int, cache: Path | None = None) -> None:
        """cache: folder of the copies; default a folder for this root below `$KVPACKET_HOME`.

        cache_bytes: most bytes of the copies; 0 caches nothing.
        """
        self._filesystem, self._root, self.name, self._most = filesystem, root, name, cache_bytes
        own = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._copies = FolderBlobs(cache or Settings().home / "packets" / own)
        self._lock = threading.Lock()
        self._held: int | None = None

    def read(self, file: str, size: int) -> memoryview | None:
        """Return the cached copy, or fetch the object and cache it."""
        self._measure()
        with contextlib.suppress(StoreError):  # a copy that cannot be read or is cut short is fetched again
            if (data := self._copies.read(file, size)) is not None:
                with contextlib.suppress(OSError):
                    os.utime(self._copies.folder / file)
                return data
        try:
            with self._errors("read"):
                fetched = self._filesystem.cat_file(self._path(file))
        except FileNotFoundError:
            return None
        if len(fetched) != size:
            raise DamagedError(
                f"{self.name}/{file} has {len(fetched)} bytes instead of {size}. Run `kvpacket verify --repair`."
            )
        self._keep(file, fetched)
        return memoryview(bytearray(fetched))  # decoding needs writable memory

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write the object. Object stores show it whole or not at all."""
        with self._errors("written"):
            self._filesystem.pipe_file(self._path(file), bytes(data))
        self._keep(file, data)

    def exists(self, file: str) -> bool:
        """Return whether the object exists."""
        with self._errors("read"):
            return bool(self._filesystem.exists(self._path(file)))

    def remove(self, files: Iterable[str]) -> None:
        """Remove objects and their copies."""
        named = list(files)
        self._copies.remove(named)
        for file in named:
            with contextlib.suppress(FileNotFoundError), self._errors("removed"):
                self._filesystem.rm_file(self._path(file))

    def files(self) -> Iterator[str]:
        """Yield the names of all objects."""
        try:
            with self._errors("listed"):
                found = self._filesystem.find(self._root)
        except FileNotFoundError:
            return
        root = PurePosixPath(self._root.lstrip("/"))
        yield from sorted(PurePosixPath(path.lstrip("/")).relative_to(root).as_posix() for path in found)

    def drop_copy(self, file: str) -> bool:
        """Remove the cached copy. Return whether there was one."""
        there = self._copies.exists(file)
        self._copies.remove([file])
        return there

    def _path(self, file: str) -> str:
        return f"{self._root}/{file}"

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Convert the different errors of drivers to `StoreError`. `FileNotFoundError` stays as it is."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StoreError(
                f"Packets at {self.name} cannot be {done}: {error}. Check address, credentials and network."
            ) from error

    def _keep(self, file: str, data: bytes | bytearray) -> None:
        """Cache a copy if there is room. Errors of a full or read-only disk are ignored."""
        if len(data) > self._most:
            return
        held = self._measure()
        with self._lock, contextlib.suppress(StoreError, OSError):
            if held + len(data) > self._most:
                self._shrink(self._most * (1 - TAKEN_BACK) - len(data))
            write_durably(self._copies.folder / file, data)
            self._held = (self._held or 0) + len(data)

    def _measure(self) -> int:
        """Return the bytes of the copies. The first call walks the folder.

        It also evicts copies, because an earlier process may have had a larger limit.
        """
        with self._lock:
            if self._held is None:
                self._shrink(self._most)
            return self._held or 0

    def _sizes(self) -> list[tuple[float, int, str]]:
        """Return last use, bytes and name of each copy. Another process may remove copies meanwhile."""
        found = []
        for file in self._copies.files():
            with contextlib.suppress(OSError):
                state = (self._copies.folder / file).stat()
                found.append((state.st_mtime, state.st_size, file))
        return found

    def _shrink(self, most: float) -> None:
        """Evict the least recently used copies until at most `most` bytes are left."""
        sizes = sorted(self._sizes())
        held = sum(size for _, size, _ in sizes)
        for _, size, file in sizes:
            if held <= most:
                break
            self._copies.remove([file])
            held -= size
        self._held = held
