"""The routes `/v1/documents`, `/v1/files` and `/v1/store`: they add, list and remove documents."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, File, UploadFile
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.corpus.readers import SUFFIXES, SourceFile, read_file
from kvpacket_rag.errors import DocumentError, KVPacketError
from kvpacket_rag.events import AddReport, BuildListener, BuildProgress
from kvpacket_rag.serve.errors import describe
from kvpacket_rag.serve.limits import ConcurrencyLimit
from kvpacket_rag.serve.openai_api import event
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["library_routes"]


class GivenDocument(BaseModel):
    """A document in the body of `POST /v1/documents`."""

    model_config = ConfigDict(extra="forbid")

    text: str
    id: str = ""
    title: str = ""
    source: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    markdown: bool = False


class GivenDocuments(BaseModel):
    """The body of `POST /v1/documents`."""

    documents: list[GivenDocument] = Field(min_length=1)


def library_routes(store: DocumentStore, gate: ConcurrencyLimit) -> APIRouter:
    """Build the routes that list and change documents."""
    router = APIRouter()

    @router.get("/v1/documents")
    async def listed() -> dict[str, Any]:
        """List the documents."""
        documents = await asyncio.to_thread(store.documents)
        return {"object": "list", "data": [{"object": "document", **asdict(document)} for document in documents]}

    @router.post("/v1/documents", response_model=None)
    async def add(given: GivenDocuments, stream: bool = False) -> Response:
        """Add documents, or replace those with the same id. `?stream=true` reports progress."""
        documents = [Document(**document.model_dump()) for document in given.documents]
        return await _adding(lambda progress: store.add(documents, progress=progress), gate, stream)

    @router.post("/v1/files", response_model=None)
    async def upload(file: Annotated[list[UploadFile], File()], stream: bool = False) -> Response:
        """Add files. A file replaces an earlier upload with the same name."""
        documents = [document for one in file for document in await asyncio.to_thread(_read, one)]
        return await _adding(lambda progress: _replace(store, documents, progress), gate, stream)

    @router.delete("/v1/documents/{name:path}")
    async def remove(name: str) -> dict[str, Any]:
        """Remove a document."""
        await asyncio.to_thread(store.remove, name)
        return {"id": name, "object": "document", "deleted": True}

    @router.get("/v1/store")
    async def held() -> dict[str, Any]:
        """Describe the knowledge base: its settings and numbers."""
        return {"object": "store", **asdict(await asyncio.to_thread(store.info))}

    return router


def _read(upload: UploadFile) -> list[Document]:
    """Read an uploaded file under its own name. The name may be any text and is never used as a path."""
    name = PurePosixPath((upload.filename or "").replace("\\", "/")).name
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise DocumentError(f"{name!r} is of no known kind ({suffix or 'no suffix'}). Known: {', '.join(SUFFIXES)}.")
    with tempfile.TemporaryDirectory(prefix="kvpacket-") as folder:
        path = Path(folder) / f"upload{suffix}"
        path.write_bytes(upload.file.read())
        try:
            read = read_file(SourceFile(path, name, explicit=True))
        except DocumentError as error:
            raise DocumentError(str(error).replace(str(path), name)) from error
    stem = PurePosixPath(name).stem
    return [
        replace(document, source=f"upload:{name}", title=stem if document.title == path.stem else document.title)
        for document in read
    ]


def _replace(store: DocumentStore, documents: list[Document], progress: BuildListener) -> AddReport:
    """Add the documents of files. Remove documents that only earlier files with the same names contained."""
    report = store.add(documents, progress=progress)
    sources, names = {document.source for document in documents}, {document.id for document in documents}
    store.discard(old.id for old in store.documents() if old.source in sources and old.id not in names)
    return report


async def _adding(work: Callable[[BuildListener], AddReport], gate: ConcurrencyLimit, stream: bool) -> Response:
    """Add documents, one request at a time. If `stream` is true, the response reports progress."""
    if stream:
        return StreamingResponse(
            _progress(work, gate), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    async with gate:
        report = await asyncio.to_thread(work, lambda _: None)
    return JSONResponse(_done(report))


def _done(report: AddReport) -> dict[str, Any]:
    return {"object": "documents.added", **asdict(report)}


async def _progress(work: Callable[[BuildListener], AddReport], gate: ConcurrencyLimit) -> AsyncGenerator[str, None]:
    """Yield the progress of the work, then its report. Work that has begun continues if the client disconnects."""
    loop, states = asyncio.get_running_loop(), asyncio.Queue[BuildProgress | None]()

    def tell(state: BuildProgress) -> None:
        loop.call_soon_threadsafe(states.put_nowait, state)

    try:
        async with gate:
            task = asyncio.ensure_future(asyncio.to_thread(work, tell))
            task.add_done_callback(lambda _: states.put_nowait(None))
            while (state := await states.get()) is not None:
                yield event({"object": "documents.progress", **asdict(state)})
            yield event(_done(await task))
    except KVPacketError as error:
        yield event(describe(error)[1])
