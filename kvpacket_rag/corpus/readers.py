"""Readers that turn files into documents: text, Markdown, HTML, PDF, Word and JSON.

Each reader says clearly why a file cannot be read. The HTML, PDF and Word readers need the extra `readers`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import DocumentError, InputError, require

__all__ = ["SUFFIXES", "SourceFile", "find_files", "read_file"]

TEXT_KEYS = ("text", "content", "page_content", "body")


@dataclass(frozen=True)
class SourceFile:
    """A file to read, and the name of its document."""

    path: Path
    name: str
    """Path relative to the parent of the folder (or file) that the user gave, with forward slashes."""
    explicit: bool
    """Whether the user named this file itself, rather than a folder that contains it."""


def find_files(paths: list[str | Path]) -> list[SourceFile]:
    """List the readable files among `paths` and below folders, sorted and without hidden files.

    Raises `DocumentError` if a path does not exist, or if a file that was named directly has an unknown file type.
    """
    found: dict[Path, SourceFile] = {}
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise DocumentError(
                f"There is no file or folder {path}. Check the path (relative paths start from {Path.cwd()})."
            )
        if path.is_file():
            if path.suffix.lower() not in SUFFIXES:
                raise DocumentError(
                    f"{path} is of no known kind ({path.suffix or 'no suffix'}). Known: {', '.join(SUFFIXES)}."
                )
            found.setdefault(path.resolve(), SourceFile(path, path.name, explicit=True))
            continue
        root = path.resolve()
        for file in sorted(root.rglob("*")):
            inside = file.relative_to(root)
            if (
                file.is_file()
                and file.suffix.lower() in SUFFIXES
                and not any(part.startswith(".") for part in inside.parts)
            ):
                found.setdefault(file, SourceFile(file, f"{root.name}/{inside.as_posix()}", explicit=False))
    return list(found.values())


def read_file(file: SourceFile) -> list[Document]:
    """Read one file. A JSON file may contain several documents.

    Raises `DocumentError`, which names the file, if the file is empty, binary or not UTF-8, or contains no text.
    """
    try:
        documents = list(SUFFIXES[file.path.suffix.lower()](file))
    except InputError as error:
        raise DocumentError(f"{file.path}: {error}") from error
    except OSError as error:
        raise DocumentError(f"{file.path} cannot be read: {error.strerror or error}.") from error
    names = Counter(document.id for document in documents)
    if twice := [name for name, count in names.items() if count > 1]:
        raise DocumentError(
            f"{file.path} contains several documents with the id {twice[0]!r}. Give each document its own id, or none."
        )
    if not documents:
        raise DocumentError(f"{file.path} contains no text.")
    return documents


def _decode(path: Path) -> str:
    data = path.read_bytes()
    if not data.strip():
        raise DocumentError("the file is empty; expected some text.")
    if b"\x00" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("the file is binary; expected text. Convert it to text or remove it.")
    try:
        return data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"the file is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}). Save it as UTF-8."
        ) from error


def _title(text: str, fallback: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first.lstrip("# ").strip() if first.startswith("#") else fallback


def _document(file: SourceFile, text: str, *, markdown: bool = False, title: str = "") -> Document:
    return Document(
        text=text.replace("\r\n", "\n").strip(),
        id=file.name,
        title=title or _title(text, file.path.stem),
        source=str(file.path.resolve()),
        markdown=markdown,
    )


def _read_text(file: SourceFile) -> Iterator[Document]:
    yield _document(file, _decode(file.path))


def _read_markdown(file: SourceFile) -> Iterator[Document]:
    yield _document(file, _decode(file.path), markdown=True)


def _read_html(file: SourceFile) -> Iterator[Document]:
    bs4 = require("bs4", extra="readers", purpose=f"Reading {file.path.name}")
    page = bs4.BeautifulSoup(_decode(file.path), "html.parser")
    for unread in page(["script", "style", "noscript", "template", "nav"]):
        unread.decompose()
    title = page.title.get_text(" ", strip=True) if page.title else ""
    for string in page.find_all(string=True):
        if isinstance(string, bs4.element.PreformattedString):  # the page does not show comments and declarations
            string.extract()
        elif string.find_parent("pre") is None:  # the page shows line breaks in the source as spaces
            string.replace_with(re.sub(r"\s+", " ", string))
    for row in page.find_all("tr"):  # each table row becomes one line of text
        cells = [cell.get_text(" ", strip=True) for cell in row.find_all(["td", "th"], recursive=False)]
        row.replace_with("\n" + " | ".join(cells) + "\n")
    for block in page.find_all(
        ["p", "div", "section", "article", "li", "table", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "br"]
    ):
        block.insert_before("\n\n" if block.name not in ("li", "br") else "\n")
        block.insert_after("\n")
    lines = (line.strip() for line in (page.body or page).get_text().splitlines())
    text = _squeeze(lines)
    if not text:
        raise DocumentError("the page contains no text.")
    yield _document(file, text, title=title)


def _squeeze(lines: Iterator[str]) -> str:
    """Join lines, and reduce consecutive empty lines to one."""
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).strip()


def _read_pdf(file: SourceFile) -> Iterator[Document]:
    pypdf = require("pypdf", extra="readers", purpose=f"Reading {file.path.name}")
    try:
        reader = pypdf.PdfReader(file.path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("the PDF is encrypted; save it without a password.")
        pages = [page.extract_text() for page in reader.pages]
        title = str((reader.metadata or {}).get("/Title") or "")
    except DocumentError:
        raise
    except Exception as error:  # the library raises many types of exceptions for damaged files
        raise DocumentError(f"the PDF is damaged or its format is not supported: {error}.") from error
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    if not text:
        raise DocumentError(f"the PDF has {len(pages)} pages but no text (a scan?). Run text recognition on it first.")
    yield _document(file, text, title=title)


def _read_docx(file: SourceFile) -> Iterator[Document]:
    docx = require("docx", extra="readers", purpose=f"Reading {file.path.name}")
    parts = []
    try:
        opened = docx.Document(str(file.path))
        for block in opened.iter_inner_content():
            if hasattr(block, "rows"):
                parts.append("\n".join(" | ".join(cell.text.strip() for cell in row.cells) for row in block.rows))
            elif block.text.strip():
                parts.append(block.text.strip())
        title = opened.core_properties.title or ""
    except Exception as error:  # the library raises exceptions of its zip and XML layers
        raise DocumentError(f"the Word file is damaged or is not a .docx file: {error}.") from error
    if not parts:
        raise DocumentError("the Word file contains no text.")
    yield _document(file, "\n\n".join(parts), title=title)


def _from_json(file: SourceFile, value: Any, place: str) -> Document:
    if not isinstance(value, dict):
        raise DocumentError(
            f"{place} is not an object; expected an object with one of the keys {', '.join(TEXT_KEYS)}."
        )
    key = next((key for key in TEXT_KEYS if isinstance(value.get(key), str)), None)
    if key is None:
        raise DocumentError(
            f"{place} has no text; expected one of the keys {', '.join(TEXT_KEYS)}, got {', '.join(map(str, value)) or 'none'}."
        )
    given = value.get("metadata")
    metadata = {
        **(given if isinstance(given, dict) else {}),
        **{k: v for k, v in value.items() if k not in (key, "id", "title", "metadata")},
    }
    given_id = value.get("id")
    name = given_id if given_id not in (None, "") else place.split()[-1]
    return Document(
        text=value[key],
        id=f"{file.name}#{name}",
        title=str(value.get("title") or file.path.stem),
        source=str(file.path.resolve()),
        metadata=metadata,
    )


def _read_jsonl(file: SourceFile) -> Iterator[Document]:
    for number, line in enumerate(_decode(file.path).split("\n"), start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DocumentError(f"line {number} is not JSON: {error}.") from error
            yield _from_json(file, value, f"line {number}")


def _read_json(file: SourceFile) -> Iterator[Document]:
    try:
        value = json.loads(_decode(file.path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(f"the file is not JSON: {error}.") from error
    if isinstance(value, list):
        for number, item in enumerate(value, start=1):
            yield _from_json(file, item, f"item {number}")
    else:
        yield _from_json(file, value, "item 1")


SUFFIXES: dict[str, Callable[[SourceFile], Iterator[Document]]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
    ".docx": _read_docx,
    ".json": _read_json,
    ".jsonl": _read_jsonl,
}
"""Readers by file name suffix."""
