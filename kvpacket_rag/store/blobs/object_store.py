"""Packets in a store of objects (S3 and whatever else fsspec knows), with copies of those used last on this machine."""

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
"""Bytes of packets that are kept on this machine of those that lie elsewhere."""
TAKEN_BACK = 0.1
"""Part of the copies that goes when there are too many, so that the folder is not walked for each."""


def blobs_at(url: str, below: str, options: Mapping[str, Any] | None, cache_bytes: int) -> Blobs:
    """Give the place a URL names, and the part of it `below`: a folder for file://, else a store of objects.

    Raises `InputError` for a URL that fsspec does not know, `MissingDependencyError` if its package is not installed.
    """
    fsspec = require("fsspec", extra="s3", purpose=f"Packets at {url}")
    # Other processes change what lies there, and credentials may be others than when a store was opened before.
    uncached = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **{**(options or {}), **uncached})
    except ImportError as error:
        raise MissingDependencyError(
            f"Packets at {url} need a package that is not installed: {error}. For S3: pip install 'kvpacket-rag[s3]'"
        ) from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{url} is no address of a store of objects: {error}. Give one such as s3://bucket/prefix."
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
    """Objects below a root, and copies of them in a folder of this machine, up to a number of bytes."""

    def __init__(self, filesystem: Any, root: str, *, name: str, cache_bytes: int, cache: Path | None = None) -> None:
        """cache: folder of the copies; default one of this root's own below `$KVPACKET_HOME`. cache_bytes: 0 keeps none."""
        self._filesystem, self._root, self.name, self._most = filesystem, root, name, cache_bytes
        own = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._copies = FolderBlobs(cache or Settings().home / "packets" / own)
        self._lock = threading.Lock()
        self._held: int | None = None

    def read(self, file: str, size: int) -> memoryview | None:
        """Take the copy, or fetch the object and keep a copy."""
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
        return memoryview(bytearray(fetched))  # decoding wants memory that can be written to

    def write(self, file: str, data: bytes | bytearray) -> None:
        """Write the object; stores of objects show it whole or not at all."""
        with self._errors("written"):
            self._filesystem.pipe_file(self._path(file), bytes(data))
        self._keep(file, data)

    def exists(self, file: str) -> bool:
        """Ask for the object."""
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
        """List the objects."""
        try:
            with self._errors("listed"):
                found = self._filesystem.find(self._root)
        except FileNotFoundError:
            return
        root = PurePosixPath(self._root.lstrip("/"))
        yield from sorted(PurePosixPath(path.lstrip("/")).relative_to(root).as_posix() for path in found)

    def drop_copy(self, file: str) -> bool:
        """Remove the copy."""
        there = self._copies.exists(file)
        self._copies.remove([file])
        return there

    def _path(self, file: str) -> str:
        return f"{self._root}/{file}"

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn what drivers raise, each its own, into errors of ours; "not found" stays."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StoreError(
                f"Packets at {self.name} cannot be {done}: {error}. Check address, credentials and network."
            ) from error

    def _keep(self, file: str, data: bytes | bytearray) -> None:
        """Keep a copy, if there is room; a full or read-only disk keeps none."""
        if len(data) > self._most:
            return
        held = self._measure()
        with self._lock, contextlib.suppress(StoreError, OSError):
            if held + len(data) > self._most:
                self._shrink(self._most * (1 - TAKEN_BACK) - len(data))
            write_durably(self._copies.folder / file, data)
            self._held = (self._held or 0) + len(data)

    def _measure(self) -> int:
        """Bytes of the copies, walked once; an earlier process may have kept more than this one may."""
        with self._lock:
            if self._held is None:
                self._shrink(self._most)
            return self._held or 0

    def _sizes(self) -> list[tuple[float, int, str]]:
        """Last use, bytes and name of each copy; another process may remove them meanwhile."""
        found = []
        for file in self._copies.files():
            with contextlib.suppress(OSError):
                state = (self._copies.folder / file).stat()
                found.append((state.st_mtime, state.st_size, file))
        return found

    def _shrink(self, most: float) -> None:
        """Remove the copies unused for longest until at most so many bytes are held."""
        sizes = sorted(self._sizes())
        held = sum(size for _, size, _ in sizes)
        for _, size, file in sizes:
            if held <= most:
                break
            self._copies.remove([file])
            held -= size
        self._held = held
