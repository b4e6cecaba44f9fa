"""Errors of this package as HTTP statuses and bodies that OpenAI's clients read."""

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
"""The first that fits."""


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for an error; those not of this package say nothing of their inside."""
    for kind, status, category, code in STATUS:
        if isinstance(error, kind):
            return status, error_body(str(error), category, code)
    return 500, error_body("Something went wrong inside the server; its log says what.", "server_error", "internal")
