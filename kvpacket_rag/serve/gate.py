"""Who may come in, with how much, and how many at a time."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvpacket_rag.errors import BusyError
from kvpacket_rag.serve.wire import error_body

__all__ = ["LOOPBACK", "Gate", "Guard", "Limits"]

OPEN = ("/", "/page.js", "/page.css", "/health")
"""What needs no key: the page itself holds nothing."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """What a server takes on at most."""

    concurrent: int = 4
    """Questions answered at a time; they share one model, which reads one prompt at a time."""
    waiting: int = 64
    """Questions that may wait for their turn; the next is turned away with status 429."""
    body_bytes: int = 32 * 10**6
    """The longest request."""


class Gate:
    """Lets in some at a time, and makes some more wait: `async with gate`."""

    def __init__(self, concurrent: int, waiting: int) -> None:
        self._free, self._waiting, self._most = asyncio.Semaphore(concurrent), 0, waiting

    async def __aenter__(self) -> None:
        """Wait for a place. Raises `BusyError` if too many wait already."""
        if self._free.locked() and self._waiting >= self._most:
            raise BusyError(f"{self._waiting} requests are waiting already. Try again in a moment.")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class Guard:
    """Turns away requests of strangers: without the key, from other sites' pages, too long."""

    def __init__(
        self, app: ASGIApp, *, key: str | None, body_bytes: int, hosts: Sequence[str] | None, origins: Sequence[str]
    ) -> None:
        """hosts: names under which the server may be addressed, None for any: a page that makes its own name point here is not let in.

        origins: sites whose pages may use the server besides its own.
        """
        self.app, self._key, self._body_bytes = app, key, body_bytes
        self._hosts, self._origins = hosts, {origin.rstrip("/") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _named(host) not in self._hosts:
            return _refuse(403, f"This server is not addressed as {host!r}; use one of {', '.join(self._hosts)}.", "wrong_host")  # fmt: skip
        if origin is not None and origin.partition("://")[2] != host and origin.rstrip("/") not in self._origins:
            return _refuse(403, f"Pages of {origin} may not use this server. Start it with --allow-origin {origin}.", "wrong_origin")  # fmt: skip
        if self._key is not None and path not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
                return _refuse(401, "The key is missing or wrong; send it as 'Authorization: Bearer KEY'.", "invalid_api_key")  # fmt: skip
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._body_bytes:
            return _refuse(413, self._too_long(), "request_too_large")
        return None

    def _too_long(self) -> str:
        return f"The request is longer than {self._body_bytes:,} bytes. Send fewer documents at a time, or raise --max-body."

    def _counted(self, receive: Receive) -> Receive:
        """Count what comes: a request need not say its length, or may say another."""
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._body_bytes:
                raise HTTPException(413, self._too_long())
            return message

        return counting


def _named(host: str) -> str | None:
    """The name in a Host header, without the port; None for what is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refuse(status: int, message: str, code: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(error_body(message, "invalid_request_error", code), status, headers)
