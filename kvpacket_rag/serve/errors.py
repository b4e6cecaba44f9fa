"""Convert errors of this package into HTTP statuses and bodies that OpenAI's clients understand."""

from __future__ import annotations

from typing import Any

from kvpacket_rag.errors import (
    BusyError,
    DamagedError,
    InputError,
    KVPacketError,
    MismatchError,
    MissingDependencyError,
    NotFoundError,
    ReadOnlyError,
    StorageFullError,
)
from kvpacket_rag.serve.openai_api import error_body

__all__ = ["describe"]

STATUS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (InputError, 400, "invalid_request_error", "invalid_value"),
    (NotFoundError, 404, "invalid_request_error", "not_found"),
    (ReadOnlyError, 403, "invalid_request_error", "read_only"),
    (MismatchError, 409, "invalid_request_error", "mismatch"),
    (BusyError, 429, "rate_limit_error", "too_many_requests"),
    (StorageFullError, 507, "server_error", "storage_full"),
    (DamagedError, 500, "server_error", "damaged"),
    (MissingDependencyError, 501, "server_error", "missing_dependency"),
    (KVPacketError, 503, "server_error", "unavailable"),
)
"""The first entry that matches an error applies."""


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and body for an error. For errors from outside this package, the body has no details."""
    for kind, status, category, code in STATUS:
        if isinstance(error, kind):
            return status, error_body(str(error), category, code)
    return 500, error_body(
        "The server failed with an internal error. See its log for details.", "server_error", "internal"
    )
