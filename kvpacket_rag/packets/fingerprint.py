"""The identity of a packet: what its states depend on, and the hashes that name it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property

from kvpacket_rag.errors import MismatchError

__all__ = ["DEFAULT_NAMESPACE", "FORMAT_VERSION", "Fingerprint", "canonical", "content_hash", "short_hash"]


DEFAULT_NAMESPACE = "default"
FORMAT_VERSION = 1
"""Version of the bytes of a packet on disk; part of every fingerprint."""


def canonical(value: object) -> bytes:
    """Encode a JSON value so that equal values give equal bytes in every process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def content_hash(token_ids: tuple[int, ...]) -> str:
    """Hash of a chunk's token ids: what two chunks of equal text have in common."""
    return hashlib.sha256(canonical(list(token_ids))).hexdigest()


def short_hash(data: bytes) -> str:
    """Hash of bytes, long enough to tell apart what one store ever meets."""
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass(frozen=True)
class Fingerprint:
    """Everything the states of a packet depend on besides its own tokens.

    Each field is a short hash or a word. Two packets may stand in one context only if their fingerprints
    agree on all fields but `anchor`.
    """

    namespace: str
    """Whose packet it is; equal text in two namespaces gives two packets."""
    model: str
    """Configuration of the model."""
    weights: str
    """A sample of every weight tensor."""
    compute: str
    """Number format the model computed in."""
    tokenizer: str
    """Vocabulary and rules of the tokenizer."""
    rope: str
    """Rotation rule and frequencies of every layer."""
    cache: str
    """Layout of cached states in this release of transformers (which tensors, which shapes)."""
    anchor: str
    """Token ids of the context that the chunk saw."""
    adapter: str
    """Header and trailer embeddings around the chunk."""
    storage: str
    """Number format at rest."""
    format: int = FORMAT_VERSION
    """Version of the packet's bytes."""

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical bytes of all fields."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    def packet_key(self, content: str) -> str:
        """Name of the packet of a chunk with content hash `content` under this fingerprint."""
        return hashlib.sha256(canonical([self.digest, content])).hexdigest()

    def check(self, found: Fingerprint, what: str) -> None:
        """Raise `MismatchError` naming the first field in which `found` differs from this fingerprint."""
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
