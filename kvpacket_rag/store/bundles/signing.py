"""Signatures of bundles: ed25519 (RFC 8032) over the sha256 of the header, which holds all other checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvpacket_rag.errors import InputError, NotFoundError, SignatureError, require
from kvpacket_rag.store.bundles.format import BundleReader

__all__ = ["check_signature", "signature"]

HOW = "Make a pair with: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"


def signature(key: str | Path, digest: bytes) -> bytes:
    """Sign a digest with the private key in a PEM file. Return 64 bytes. Raises `InputError` if it holds none."""
    serialization, ed25519, _ = _cryptography()
    try:
        private = serialization.load_pem_private_key(_read(key), password=None)
    except (ValueError, TypeError) as error:
        raise InputError(f"{key} is not a private key without a password: {error}. {HOW}") from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise InputError(f"{key} does not hold an ed25519 key. {HOW}")
    return bytes(private.sign(digest))


def check_signature(reader: BundleReader, key: str | Path) -> None:
    """Raise `SignatureError` unless the signature of a bundle matches the public key in a PEM file."""
    serialization, ed25519, invalid = _cryptography()
    try:
        public = serialization.load_pem_public_key(_read(key))
    except ValueError as error:
        raise InputError(f"{key} is not a public key: {error}. {HOW}") from error
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise InputError(f"{key} does not hold an ed25519 key. {HOW}")
    if not any(reader.signature):
        raise SignatureError(
            f"The bundle {reader.name} is not signed, but a signature that matches {key} is required. Export it with --sign."
        )
    try:
        public.verify(reader.signature, reader.digest)
    except invalid as error:
        raise SignatureError(
            f"The bundle {reader.name} was not signed with the private key that belongs to {key}, or was changed afterwards. Do not use it."
        ) from error


def _cryptography() -> tuple[Any, Any, type[Exception]]:
    purpose = "Signing bundles"
    serialization = require("cryptography.hazmat.primitives.serialization", extra="sign", purpose=purpose)
    ed25519 = require("cryptography.hazmat.primitives.asymmetric.ed25519", extra="sign", purpose=purpose)
    return serialization, ed25519, require("cryptography.exceptions", extra="sign", purpose=purpose).InvalidSignature


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotFoundError(f"The key {path} cannot be read: {error.strerror or error}.") from error
