"""The exceptions of this package, in one tree. Each says what was expected, what came, and what to do.

KVPacketError
├── InputError                 the caller's value cannot be used (also a ValueError)
│   ├── DocumentError          a file or document cannot be read
│   └── BudgetError            the question does not fit the model's window
├── UnsupportedModelError      the model's states cannot be moved; `.reason` is a short code
├── ModelLoadError             a model or tokenizer could not be found or loaded
├── MissingDependencyError     an optional package is not installed (also an ImportError)
├── StoreError
│   ├── NotFoundError          no document, chunk or store of that name (also a KeyError)
│   ├── MismatchError          made by another model, adapter, embedder or format; `.field`
│   ├── DamagedError           a blob or database does not hold what was written
│   ├── ReadOnlyError          a write to a store that is only read
│   ├── SignatureError         a bundle is not signed, or not with the key asked for
│   └── StorageFullError       the disk is full
├── AdapterError               an adapter file that cannot be used here
└── BusyError                  a server has as many requests waiting as it takes
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = [
    "AdapterError",
    "BudgetError",
    "BusyError",
    "DamagedError",
    "DocumentError",
    "InputError",
    "KVPacketError",
    "MismatchError",
    "MissingDependencyError",
    "ModelLoadError",
    "NotFoundError",
    "ReadOnlyError",
    "SignatureError",
    "StorageFullError",
    "StoreError",
    "UnsupportedModelError",
    "check_count",
    "check_kind",
    "check_question",
    "check_text",
    "require",
]


class KVPacketError(Exception):
    """Any error this package raises on purpose."""


class InputError(KVPacketError, ValueError):
    """A value given by the caller cannot be used."""


class DocumentError(InputError):
    """A file or document cannot be read as text."""


class BudgetError(InputError):
    """Prefix, question and answer do not fit the model's positions even without documents."""


class UnsupportedModelError(KVPacketError):
    """The states this model caches cannot be moved to another position.

    `reason` is one of: absolute_positions, recurrent_layers, encoder_decoder, indexed_cache,
    rope_self_test_failed, cache_layout.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelLoadError(KVPacketError):
    """A model, tokenizer or embedder could not be found or loaded."""


class MissingDependencyError(KVPacketError, ImportError):
    """An optional package is needed and not installed."""


class StoreError(KVPacketError):
    """The store cannot do what was asked."""


class NotFoundError(StoreError, KeyError):
    """Nothing of that name is in the store."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class MismatchError(StoreError):
    """The store or packet was made with something else than what is at hand."""

    def __init__(self, message: str, *, field: str, expected: object, found: object) -> None:
        super().__init__(message)
        self.field, self.expected, self.found = field, expected, found


class DamagedError(StoreError):
    """Stored bytes are not the bytes that were written."""


class ReadOnlyError(StoreError):
    """The store is only read, and something was to be written to it."""


class SignatureError(StoreError):
    """A bundle is not signed, or not with the key that was asked for."""


class StorageFullError(StoreError):
    """There is no room left on the disk of the store."""


class AdapterError(KVPacketError):
    """An adapter file is malformed or belongs to another model."""


class BusyError(KVPacketError):
    """A server has as many requests waiting as it takes."""


def check_kind(value: object, kind: type | tuple[type, ...], what: str, do: str = "") -> None:
    """Raise `InputError` if a value is of another kind. what: names it. do: what to give instead, as a sentence."""
    if not isinstance(value, kind):
        some = kind if isinstance(kind, tuple) else (kind,)
        kinds = " or ".join("None" if one is type(None) else one.__name__ for one in some)
        came = "None" if value is None else type(value).__name__
        if came in kinds.split(" or "):  # a class of that name from another library
            came = f"{type(value).__module__}.{came}"
        raise InputError(f"{what} must be of the kind {kinds}, got {came}. {do}".rstrip())


def check_text(text: str, what: str) -> None:
    """Raise `InputError` if a text holds half characters (lone surrogates), which no tokenizer or database takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} holds a half character (U+{ord(text[error.start]):04X} at {error.start}), which is no text. "
            "Decode it as UTF-8, or replace what cannot be decoded."
        ) from error


def check_count(value: int, what: str) -> None:
    """Raise `InputError` unless a value is a whole number of at least 1."""
    check_kind(value, int, what)
    if value < 1:
        raise InputError(f"{what} must be at least 1, got {value}.")


def check_question(question: str) -> None:
    """Raise `InputError` unless it is a text that asks something."""
    check_kind(question, str, "The question")
    check_text(question, "The question")
    if not question.strip():
        raise InputError("The question is empty; give a text of at least one character.")


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say which extra to install.

    Raises `MissingDependencyError` naming the extra when the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {module!r}, which is not installed. Install it with: pip install 'kvpacket-rag[{extra}]'"
        ) from error
