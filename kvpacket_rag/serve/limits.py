"""Limits of the server: the maximum size of a request, and how many requests run and wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvpacket_rag.errors import BusyError
from kvpacket_rag.serve.openai_api import error_body

__all__ = ["BodyLimit", "ConcurrencyLimit", "Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    concurrent: int = 4
    """Questions answered at a time. They share one model, which prefills one prompt at a time."""
    waiting: int = 64
    """Questions that may wait. The next one is refused with status 429."""
    body_bytes: int = 32 * 10**6
    """The maximum size of a request in bytes."""


class ConcurrencyLimit:
    """Lets a limited number of requests run at a time, and a limited number wait: `async with gate`."""

    def __init__(self, concurrent: int, waiting: int) -> None:
        self._free, self._waiting, self._most = asyncio.Semaphore(concurrent), 0, waiting

    async def __aenter__(self) -> None:
        """Wait for a free place. Raises `BusyError` if too many requests are waiting already."""
        if self._free.locked() and self._waiting >= self._most:
            raise BusyError(f"{self._waiting} requests are waiting already. Try again in a moment.")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class BodyLimit:
    """Middleware that refuses requests whose body is longer than a limit, whatever length they declare."""

    def __init__(self, app: ASGIApp, *, body_bytes: int) -> None:
        self.app, self._body_bytes = app, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._body_bytes:
            refusal = error_body(self._too_long(), "invalid_request_error", "request_too_large")
            await JSONResponse(refusal, 413)(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _too_long(self) -> str:
        return f"The request is longer than {self._body_bytes:,} bytes. Send fewer documents at a time, or raise --max-body."

    def _counted(self, receive: Receive) -> Receive:
        """Count the bytes that arrive, because a request may declare no length or a wrong one."""
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._body_bytes:
                raise HTTPException(413, self._too_long())
            return message

        return counting
