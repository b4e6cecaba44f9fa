"""The identity of a packet: the values that its states depend on, and the hashes that name it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property

from kvpacket_rag.errors import MismatchError

__all__ = ["DEFAULT_NAMESPACE", "FORMAT_VERSION", "Fingerprint", "canonical", "content_hash", "short_hash"]


DEFAULT_NAMESPACE = "default"
FORMAT_VERSION = 1
"""Version of the byte format of stored packets. It is part of every fingerprint."""


def canonical(value: object) -> bytes:
    """Encode a JSON value so that equal values give equal bytes in every process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def content_hash(token_ids: tuple[int, ...]) -> str:
    """Return the hash of a chunk's token ids. Two chunks with equal text have the same hash."""
    return hashlib.sha256(canonical(list(token_ids))).hexdigest()


def short_hash(data: bytes) -> str:
    """Return a hash of bytes that is long enough to be unique within one store."""
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True)
class Fingerprint:
    """Everything that the states of a packet depend on besides its own tokens.

    Each field is a short hash or a word. Two packets may be placed in one context only if their fingerprints
    agree in all fields except `anchor`.
    """

    namespace: str
    """Namespace of the packet. Equal text in two namespaces gives two packets."""
    model: str
    """Hash of the model's configuration."""
    weights: str
    """Hash of a sample of every weight tensor."""
    compute: str
    """Number format that the model computed in."""
    tokenizer: str
    """Hash of the tokenizer's vocabulary and rules."""
    rope: str
    """Hash of the rotation rule and frequencies of every layer."""
    cache: str
    """Hash of the layout of cached states in this release of transformers (which tensors, with which shapes)."""
    anchor: str
    """Hash of the token ids of the anchor that the chunk was encoded after."""
    adapter: str
    """Hash of the header and trailer embeddings around the chunk."""
    storage: str
    """Number format in which the packet is stored."""
    format: int = FORMAT_VERSION
    """Version of the packet's byte format."""

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical bytes of all fields."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    def packet_key(self, content: str) -> str:
        """Return the name of the packet of a chunk with content hash `content` under this fingerprint."""
        return hashlib.sha256(canonical([self.digest, content])).hexdigest()

    def check(self, found: Fingerprint, what: str) -> None:
        """Raise `MismatchError` if `found` differs from this fingerprint. The error names the first field that differs.

        what: the beginning of the error message, which says what was compared.
        """
        for field in fields(self):
            expected, came = getattr(self, field.name), getattr(found, field.name)
            if expected != came:
                raise MismatchError(
                    f"{what}, and they differ in {field.name}: expected {expected!r}, found {came!r}. "
                    "Open the store with the model it was built with, or build another store with this one.",
                    field=field.name,
                    expected=expected,
                    found=came,
                )
