"""Access control: the API key, and the host names and origins of requests."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvpacket_rag.serve.openai_api import error_body

__all__ = ["LOOPBACK", "AccessGuard"]

OPEN = ("/", "/page.js", "/page.css", "/health")
"""Paths that need no key. The page itself contains no data."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class AccessGuard:
    """Middleware that refuses requests without the key, from pages of other sites, or to an unknown host name."""

    def __init__(self, app: ASGIApp, *, key: str | None, hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
        """hosts: names under which the server may be addressed, None for any.

        Other names are refused, because the page of another site could make its own name resolve to this server.

        origins: sites whose pages may use the server, besides its own page.
        """
        self.app, self._key = app, key
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
        await self.app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _named(host) not in self._hosts:
            return _refuse(403, f"This server does not accept the host name {host!r}. Use one of {', '.join(self._hosts)}.", "wrong_host")  # fmt: skip
        if origin is not None and origin.partition("://")[2] != host and origin.rstrip("/") not in self._origins:
            return _refuse(403, f"Pages of {origin} may not use this server. Start it with --allow-origin {origin}.", "wrong_origin")  # fmt: skip
        if self._key is not None and path not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key.encode()):
                return _refuse(401, "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.", "invalid_api_key")  # fmt: skip
        return None


def _named(host: str) -> str | None:
    """Return the name in a Host header without the port, or None if the header is invalid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refuse(status: int, message: str, code: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(error_body(message, "invalid_request_error", code), status, headers)
