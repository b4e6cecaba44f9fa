"""Documents from paths: reading them, preventing accidental replacement, and finding those that no longer exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvpacket_rag.corpus.document import Document, StoredDocument
from kvpacket_rag.corpus.readers import SourceFile, find_files, read_file
from kvpacket_rag.errors import DocumentError, MissingDependencyError

__all__ = ["Paths", "ReadPaths", "check_sources", "read_paths", "vanished"]


Paths = Sequence[str | Path] | str | Path
"""A file or a folder, or several."""


@dataclass(frozen=True)
class ReadPaths:
    """The files and documents found at some paths."""

    files: list[SourceFile]
    documents: list[Document]
    failed: tuple[tuple[str, str], ...]
    """Files in folders that could not be read, each as (path, reason)."""


def read_paths(paths: Paths) -> ReadPaths:
    """Read files, and all readable files below folders.

    Raises `DocumentError` if a path does not exist, or if a file that was named directly cannot be read.
    """
    documents: list[Document] = []
    failed: list[tuple[str, str]] = []
    files = find_files([paths] if isinstance(paths, str | Path) else [*paths])
    for file in files:
        try:
            documents += read_file(file)
        except (DocumentError, MissingDependencyError) as error:
            if file.explicit:
                raise
            failed.append((str(file.path), str(error)))
    return ReadPaths(files, documents, tuple(failed))


def check_sources(stored: Sequence[StoredDocument], documents: Sequence[Document], location: str) -> None:
    """Raise `DocumentError` if a file would replace a file from another folder of the same name."""
    known = {document.id: document.source for document in stored}
    for document in documents:
        other = known.get(document.id, document.source)
        if other != document.source and Path(other).exists():
            raise DocumentError(
                f"{document.source} would replace {document.id!r}, which came from {other}. Rename one of the folders, "
                f"or remove the old document first: kvpacket rm {location} {document.id!r}."
            )
        known[document.id] = document.source


def vanished(stored: Sequence[StoredDocument], read: ReadPaths) -> list[str]:
    """Return the ids of documents that a file contained when it was last read and no longer contains."""
    names = {document.id for document in read.documents}
    origins = {str(file.path.resolve()): f"{file.name}#" for file in read.files}
    sources = {document.source for document in read.documents}
    return [
        document.id
        for document in stored
        if document.source in sources and document.id not in names and document.id.startswith(origins[document.source])
    ]
