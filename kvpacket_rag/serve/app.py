"""The server as one ASGI application: routes, page, health, metrics and error handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvpacket_rag import __version__
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.errors import KVPacketError, require
from kvpacket_rag.serve.access import AccessGuard
from kvpacket_rag.serve.chat import chat_routes
from kvpacket_rag.serve.documents import library_routes
from kvpacket_rag.serve.errors import describe
from kvpacket_rag.serve.limits import BodyLimit, ConcurrencyLimit, Limits
from kvpacket_rag.serve.metrics import Metrics
from kvpacket_rag.serve.openai_api import error_body

__all__ = ["create_app"]

PAGE = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"), "/page.css": ("page.css", "text/css")}  # fmt: skip
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"  # fmt: skip
"""What the page may load: only its own script and style, whatever a document contains."""
ADDING_WAITING = 16


def create_app(
    rag: RAG, *, api_key: str | None = None, limits: Limits | None = None, metrics: Metrics | None = None,
    hosts: Sequence[str] | None = None, origins: Sequence[str] = (),
) -> FastAPI:  # fmt: skip
    """Build the application: OpenAI's chat API, documents, metrics and the page.

    The caller still owns the store and must close it.

    metrics: the hook with which the store was opened; `/metrics` shows it. hosts: names under which the server may be
    addressed, None for any. origins: sites whose pages may use the server.
    """
    limits = limits or Limits()
    app = FastAPI(title="kvpacket-rag", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(chat_routes(rag, ConcurrencyLimit(limits.concurrent, limits.waiting)))
    app.include_router(library_routes(rag.store, ConcurrencyLimit(1, ADDING_WAITING)))
    _page(app)
    _care(app, metrics)
    _errors(app)
    app.add_middleware(BodyLimit, body_bytes=limits.body_bytes)
    app.add_middleware(AccessGuard, key=api_key, hosts=hosts, origins=tuple(origins))
    if origins:  # outermost, because preflight requests of browsers carry no key
        app.add_middleware(CORSMiddleware, allow_origins=[*origins], allow_methods=["*"], allow_headers=["*"])
    return app


def _page(app: FastAPI) -> None:
    for path, (name, kind) in PAGE.items():
        app.add_route(path, _file(name, kind), methods=["GET"], include_in_schema=False)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("kvpacket_rag.serve") / "page" / name).read_bytes()
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}

    async def show(_: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)

    return show


def _care(app: FastAPI, metrics: Metrics | None) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Report that the server is running."""
        return {"status": "ok", "version": __version__}

    @app.get("/metrics", response_model=None)
    async def counted() -> Response:
        """Return the counters for Prometheus."""
        client = require("prometheus_client", extra="metrics", purpose="Counting for Prometheus")
        if metrics is None:
            raise HTTPException(404, "This server has no metrics. Open its store with the hook Metrics.")
        text = await asyncio.to_thread(client.generate_latest, metrics.registry)
        return Response(text, media_type=client.CONTENT_TYPE_LATEST)


def _errors(app: FastAPI) -> None:
    async def ours(_: Request, error: Exception) -> JSONResponse:
        status, body = describe(error)
        return JSONResponse(body, status, {"Retry-After": "1"} if status == 429 else None)

    async def malformed(_: Request, error: Exception) -> JSONResponse:
        faults = error.errors() if isinstance(error, RequestValidationError) else []
        message = "; ".join(f"{'.'.join(map(str, fault['loc'][1:])) or 'body'}: {fault['msg']}" for fault in faults)
        return JSONResponse(error_body(f"The request cannot be read: {message}.", "invalid_request_error", "invalid_request"), 400)  # fmt: skip

    async def refused(_: Request, error: Exception) -> JSONResponse:
        status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
        return JSONResponse(error_body(str(detail), "invalid_request_error", "not_found" if status == 404 else "refused"), status)  # fmt: skip

    app.add_exception_handler(KVPacketError, ours)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, ours)
