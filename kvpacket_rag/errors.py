"""The exceptions of this package, in one tree. Each message says what was expected, what came, and what to do.

KVPacketError
├── InputError                 a value from the caller cannot be used (also a ValueError)
│   ├── DocumentError          a file or document cannot be read
│   └── BudgetError            the question does not fit the model's window
├── UnsupportedModelError      the model's cached states cannot be moved; `.reason` is a short code
├── ModelLoadError             a model or tokenizer could not be found or loaded
├── MissingDependencyError     an optional package is not installed (also an ImportError)
├── StoreError
│   ├── NotFoundError          there is no document, chunk or store of that name (also a KeyError)
│   ├── MismatchError          made with another model, adapter, embedder or format; `.field` says which
│   ├── DamagedError           a blob does not match its checksum, or a bundle or database is damaged
│   ├── ReadOnlyError          a write to a read-only store
│   ├── SignatureError         a bundle is not signed, or not with the requested key
│   └── StorageFullError       the disk is full
├── AdapterError               an adapter file is malformed or belongs to another model
└── BusyError                  the request queue of a server is full
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
    """The base class of all errors that this package raises on purpose."""


class InputError(KVPacketError, ValueError):
    """A value from the caller cannot be used."""


class DocumentError(InputError):
    """A file or document cannot be read as text."""


class BudgetError(InputError):
    """Prefix, question and answer do not fit the model's positions, even without documents."""


class UnsupportedModelError(KVPacketError):
    """The states that this model caches cannot be moved to another position.

    `reason` is one of: absolute_positions, recurrent_layers, encoder_decoder, indexed_cache,
    rope_self_test_failed, cache_layout.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelLoadError(KVPacketError):
    """A model, tokenizer or embedder could not be found or loaded."""


class MissingDependencyError(KVPacketError, ImportError):
    """An optional package is needed but not installed."""


class StoreError(KVPacketError):
    """The store cannot do what was asked."""


class NotFoundError(StoreError, KeyError):
    """The store has nothing of that name."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class MismatchError(StoreError):
    """The store or packet was made with something other than what is used now.

    `field` names what differs, and `expected` and `found` are its two values.
    """

    def __init__(self, message: str, *, field: str, expected: object, found: object) -> None:
        super().__init__(message)
        self.field, self.expected, self.found = field, expected, found


class DamagedError(StoreError):
    """Stored data is damaged, for example because it does not match its checksum."""


class ReadOnlyError(StoreError):
    """A write to a read-only store."""


class SignatureError(StoreError):
    """A bundle is not signed, or not with the requested key."""


class StorageFullError(StoreError):
    """The disk of the store is full."""


class AdapterError(KVPacketError):
    """An adapter file is malformed or belongs to another model."""


class BusyError(KVPacketError):
    """The request queue of a server is full."""


def check_kind(value: object, kind: type | tuple[type, ...], what: str, do: str = "") -> None:
    """Raise `InputError` if a value is not of the expected type.

    what: name of the value in the message. do: a sentence that says what to pass instead.
    """
    if not isinstance(value, kind):
        some = kind if isinstance(kind, tuple) else (kind,)
        kinds = " or ".join("None" if one is type(None) else one.__name__ for one in some)
        came = "None" if value is None else type(value).__name__
        if came in kinds.split(" or "):  # another library has a class of the same name
            came = f"{type(value).__module__}.{came}"
        raise InputError(f"{what} must be of the kind {kinds}, got {came}. {do}".rstrip())


def check_text(text: str, what: str) -> None:
    """Raise `InputError` if a text contains half characters (lone surrogates), which no tokenizer or database takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} contains a half character (U+{ord(text[error.start]):04X} at {error.start}), which is not valid "
            "text. Decode it as UTF-8, or replace the characters that cannot be decoded."
        ) from error


def check_count(value: int, what: str) -> None:
    """Raise `InputError` unless a value is a whole number of at least 1."""
    check_kind(value, int, what)
    if value < 1:
        raise InputError(f"{what} must be at least 1, got {value}.")


def check_question(question: str) -> None:
    """Raise `InputError` unless the question is a text with at least one visible character."""
    check_kind(question, str, "The question")
    check_text(question, "The question")
    if not question.strip():
        raise InputError("The question is empty; give a text of at least one character.")


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module and return it.

    Raises `MissingDependencyError`, which names the extra to install, if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {module!r}, which is not installed. Install it with: pip install 'kvpacket-rag[{extra}]'"
        ) from error
