"""Trained input embeddings around chunks and before the question (KV Packet, arXiv 2604.13226, section 3).

An adapter has up to four parts, each possibly empty: `header` and `trailer` stand in every packet, before and
after its chunk; `bridge` stands between the last packet and the question and is computed with the question, so
that changing it rebuilds no packet; `anchor` stands before the chunk when its packet is made and is left out of the
packet, so that it costs nothing when answering. Files are safetensors with the card as JSON in the metadata.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kvpacket_rag.errors import AdapterError

__all__ = ["PARTS", "SHIPPED", "Adapter", "AdapterCard", "no_adapter", "shipped_adapter"]

PARTS = ("header", "trailer", "bridge", "anchor")
CARD_KEY = "kvpacket_adapter"
SHIPPED = "shipped"
"""Names the adapter that comes with the package."""


@dataclass(frozen=True)
class AdapterCard:
    """What an adapter was trained for and how well it did."""

    architecture: str = ""
    """Model type of the configuration, such as "llama"."""
    model: str = ""
    """Name of the model."""
    tokenizer: str = ""
    """Hash of the tokenizer, as in a packet's fingerprint."""
    weights: str = ""
    """Hash of the weights; other weights of the same name give a warning, not an error."""
    data: str = ""
    """Training data, in words."""
    chunk_lengths: tuple[int, int] = (0, 0)
    """Shortest and longest chunk in training, tokens; (0, 0) if unknown."""
    anchors: tuple[str, str] = ("", "")
    """What chunks saw in training: the one standing first, and the others."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Steps, lessons, seed and the like."""
    fidelity: Mapping[str, float] = field(default_factory=dict)
    """KL to full prefill per answer token on held-out questions, by domain."""
    without: Mapping[str, float] = field(default_factory=dict)
    """The same with what training started from: another adapter, or none."""

    def far_from(self, chunk_tokens: int) -> bool:
        """Whether chunks of this length are far from all in training: below half the shortest or above twice the longest."""
        shortest, longest = self.chunk_lengths
        return longest > 0 and not shortest / 2 <= chunk_tokens <= 2 * longest


def _hash(parts: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(tuple(part.shape)).encode())
        digest.update(part.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Adapter:
    """Input embeddings [n, hidden] for the four places; n may be 0 in each."""

    header: Tensor
    trailer: Tensor
    bridge: Tensor
    anchor: Tensor
    card: AdapterCard = field(default_factory=AdapterCard)

    def __post_init__(self) -> None:
        parts = [getattr(self, name) for name in PARTS]
        if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
            shapes = {name: tuple(getattr(self, name).shape) for name in PARTS}
            raise AdapterError(f"An adapter's parts must be [n, hidden] with one hidden size; got {shapes}.")

    @property
    def hidden_size(self) -> int:
        """Width of the embeddings."""
        return int(self.header.shape[1])

    @cached_property
    def packet_hash(self) -> str:
        """Hash of header and trailer, the parts a packet depends on; "none" if both are empty."""
        if not len(self.header) and not len(self.trailer):
            return "none"
        return _hash((self.header, self.trailer))

    @cached_property
    def digest(self) -> str:
        """Hash of all parts."""
        return _hash(getattr(self, name) for name in PARTS)

    @cached_property
    def anchor_hash(self) -> str:
        """Hash of the anchor, on which packets made behind it depend."""
        return _hash((self.anchor,))

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], card: AdapterCard | None = None) -> Adapter:
        """Make an adapter of the parts given by name, at least one; the others are empty."""
        empty = next(iter(parts.values())).new_empty(0, next(iter(parts.values())).shape[-1])
        return cls(**{name: parts.get(name, empty) for name in PARTS}, card=card or AdapterCard())

    def embed_anchor(self, ids: Tensor, embeds: Tensor) -> Tensor:
        """Put the anchor's embeddings in the places of ids below zero: -1 is the anchor's first, and so on.

        ids: [..., T]; embeds: [..., T, hidden], of which those places are replaced.
        """
        soft = (ids < 0).unsqueeze(-1).to(embeds.device)
        rows = self.anchor.to(embeds)[(-1 - ids).clamp_min(0)]
        return torch.where(soft, rows, embeds)

    def surround(self, embeds: Tensor, lengths: Sequence[int]) -> Tensor:
        """Put header and trailer around chunks given as embeddings [B, T, hidden], of which row i has `lengths[i]` tokens.

        Returns [B, header + T + trailer, hidden]; each row's trailer stands right behind its own last token.
        """
        header, trailer = self.header.to(embeds), self.trailer.to(embeds)
        rows = zip(embeds, lengths, strict=True)
        return torch.stack([torch.cat((header, row[:length], trailer, row[length:])) for row, length in rows])

    def to_bytes(self) -> bytes:
        """The adapter as the bytes of a safetensors file."""
        tensors = {name: getattr(self, name).detach().cpu().contiguous() for name in PARTS}
        return bytes(save(tensors, metadata={CARD_KEY: json.dumps(self.card.__dict__, default=dict)}))

    def save(self, path: str | Path) -> None:
        """Write the adapter to one safetensors file, whole or not at all."""
        # Renamed when complete: who reads the old file meanwhile goes on reading it.
        part = Path(f"{path}.part")
        part.write_bytes(self.to_bytes())
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read an adapter. Raises `AdapterError` if the file is missing, malformed or of another kind."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise AdapterError(
                f"{path} cannot be read: {error.strerror or error}. Give a file written by Adapter.save."
            ) from error
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray, name: str) -> Adapter:
        """Give the adapter of some bytes that messages call `name`. Raises `AdapterError` if they are none."""
        try:
            tensors = load(bytes(data))
            (length,) = struct.unpack_from("<Q", data)
            metadata = json.loads(bytes(data[8 : 8 + length])).get("__metadata__") or {}
            if CARD_KEY not in metadata:
                raise AdapterError(
                    f"{name} is a safetensors file but not an adapter (no {CARD_KEY!r} in its metadata)."
                )
            values = json.loads(metadata[CARD_KEY])
            tuples = {part: tuple(values[part]) for part in ("chunk_lengths", "anchors") if part in values}
            return cls(**{part: tensors[part] for part in PARTS}, card=AdapterCard(**{**values, **tuples}))
        except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise AdapterError(
                f"{name} cannot be read as an adapter: {error}. Expected a file written by Adapter.save."
            ) from error

    def check(self, *, architecture: str, hidden_size: int, tokenizer: str, model: str) -> None:
        """Raise `AdapterError` naming both sides unless the adapter belongs to this model."""
        pairs = {
            "architecture": (self.card.architecture, architecture),
            "hidden size": (self.hidden_size, hidden_size),
            "tokenizer": (self.card.tokenizer, tokenizer),
            "model": (self.card.model, model),
        }
        for name, (expected, found) in pairs.items():
            # Folders and hubs write one name in several ways; the other three tell models apart, too.
            if str(expected).casefold() not in ("", str(found).casefold()):
                raise AdapterError(
                    f"The adapter was trained for {self.card.model or 'another model'} with {name} {expected!r}; "
                    f"this model is {model} with {name} {found!r}. Use an adapter trained for it, or none."
                )


def no_adapter(hidden_size: int) -> Adapter:
    """The adapter with empty parts."""
    return Adapter.of({"header": torch.empty(0, hidden_size)})


def shipped_adapter(identity: Mapping[str, Any], kind: str = "packet") -> Adapter | None:
    """Give the adapter of this package for a model, or None if there is none.

    identity: `PacketModel.adapter_identity`. kind: "packet", the default adapter, trained behind the context anchor;
    "paper", trained without an anchor as in the KV Packet paper, for comparison.
    """
    for entry in sorted((files("kvpacket_rag.packets") / "adapters").iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(f".{kind}.safetensors"):
            continue
        with as_file(entry) as path:
            adapter = Adapter.load(path)
        try:
            adapter.check(**identity)
        except AdapterError:
            continue
        return adapter
    return None
