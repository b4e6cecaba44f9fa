"""Adapters: trained input embeddings around chunks and before the question (KV Packet, arXiv 2604.13226, section 3).

An adapter has up to four parts, and each of them may be empty:

- `header` and `trailer` are part of every packet. They stand before and after its chunk.
- `bridge` stands between the last packet and the question. It is computed with the question, so that a change of the
  bridge does not require rebuilding packets.
- `anchor` stands before the chunk while its packet is encoded. It is not part of the packet, so that it costs nothing
  when answering.

An adapter file is a safetensors file whose metadata holds the card as JSON.
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
"""The name of the adapter that comes with the package."""


@dataclass(frozen=True)
class AdapterCard:
    """A description of what an adapter was trained for, and of its fidelity."""

    architecture: str = ""
    """Model type in the model's configuration, such as "llama"."""
    model: str = ""
    """Name of the model."""
    tokenizer: str = ""
    """Hash of the tokenizer, as in a packet's fingerprint."""
    weights: str = ""
    """Hash of the weights. A model of the same name with other weights causes a warning, not an error."""
    data: str = ""
    """Description of the training data."""
    chunk_lengths: tuple[int, int] = (0, 0)
    """Length of the shortest and of the longest chunk in training, in tokens; (0, 0) if unknown."""
    anchors: tuple[str, str] = ("", "")
    """The anchors in training: the one of the first chunk, and the one of the other chunks."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings, such as steps, lessons and seed."""
    fidelity: Mapping[str, float] = field(default_factory=dict)
    """KL divergence to full prefill per answer token on held-out questions, by domain."""
    without: Mapping[str, float] = field(default_factory=dict)
    """The same figures for the starting point of training, which was another adapter or no adapter."""

    def far_from(self, chunk_tokens: int) -> bool:
        """Return whether a chunk length is far from all lengths in training.

        A length is far if it is below half the shortest or above twice the longest chunk in training.
        """
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
    """The input embeddings [n, hidden] of the four parts. n may be 0 for each part."""

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
        """Hash of header and trailer, the parts that packets depend on; "none" if both are empty."""
        if not len(self.header) and not len(self.trailer):
            return "none"
        return _hash((self.header, self.trailer))

    @cached_property
    def digest(self) -> str:
        """Hash of all parts."""
        return _hash(getattr(self, name) for name in PARTS)

    @cached_property
    def anchor_hash(self) -> str:
        """Hash of the anchor. Packets that are encoded after the anchor depend on it."""
        return _hash((self.anchor,))

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], card: AdapterCard | None = None) -> Adapter:
        """Build an adapter from parts given by name. At least one part is needed; the other parts are empty."""
        empty = next(iter(parts.values())).new_empty(0, next(iter(parts.values())).shape[-1])
        return cls(**{name: parts.get(name, empty) for name in PARTS}, card=card or AdapterCard())

    def embed_anchor(self, ids: Tensor, embeds: Tensor) -> Tensor:
        """Return embeddings in which the anchor's embeddings replace those of the ids below zero.

        The id -1 stands for the first embedding of the anchor, -2 for the second, and so on.
        ids: token ids [..., T]. embeds: embeddings of the tokens [..., T, hidden].
        """
        soft = (ids < 0).unsqueeze(-1).to(embeds.device)
        rows = self.anchor.to(embeds)[(-1 - ids).clamp_min(0)]
        return torch.where(soft, rows, embeds)

    def surround(self, embeds: Tensor, lengths: Sequence[int]) -> Tensor:
        """Add the header and trailer embeddings around chunks.

        embeds: embeddings of the chunks [B, T, hidden]. lengths: number of tokens of each row.
        Returns [B, header + T + trailer, hidden]. The trailer of each row directly follows the last token of that row.
        """
        header, trailer = self.header.to(embeds), self.trailer.to(embeds)
        rows = zip(embeds, lengths, strict=True)
        return torch.stack([torch.cat((header, row[:length], trailer, row[length:])) for row, length in rows])

    def to_bytes(self) -> bytes:
        """Return the adapter as the bytes of a safetensors file."""
        tensors = {name: getattr(self, name).detach().cpu().contiguous() for name in PARTS}
        return bytes(save(tensors, metadata={CARD_KEY: json.dumps(self.card.__dict__, default=dict)}))

    def save(self, path: str | Path) -> None:
        """Write the adapter to one safetensors file. The file is written completely or not at all."""
        # The file is renamed when it is complete, so that a process that reads the old file can continue.
        part = Path(f"{path}.part")
        part.write_bytes(self.to_bytes())
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Load an adapter from a file. Raises `AdapterError` if the file is missing, malformed or not an adapter."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise AdapterError(
                f"{path} cannot be read: {error.strerror or error}. Give a file written by Adapter.save."
            ) from error
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray, name: str) -> Adapter:
        """Return the adapter that `data` holds.

        name: what error messages call the data. Raises `AdapterError` if the data is not an adapter.
        """
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
        """Raise `AdapterError` with the expected and the found value unless the adapter belongs to this model."""
        pairs = {
            "architecture": (self.card.architecture, architecture),
            "hidden size": (self.hidden_size, hidden_size),
            "tokenizer": (self.card.tokenizer, tokenizer),
            "model": (self.card.model, model),
        }
        for name, (expected, found) in pairs.items():
            # Folders and hubs differ in how they capitalise a name. The other three values distinguish models as well.
            if str(expected).casefold() not in ("", str(found).casefold()):
                raise AdapterError(
                    f"The adapter was trained for {self.card.model or 'another model'} with {name} {expected!r}; "
                    f"this model is {model} with {name} {found!r}. Use an adapter trained for it, or none."
                )


def no_adapter(hidden_size: int) -> Adapter:
    """Return an adapter whose parts are all empty."""
    return Adapter.of({"header": torch.empty(0, hidden_size)})


def shipped_adapter(identity: Mapping[str, Any], kind: str = "packet") -> Adapter | None:
    """Return the adapter that comes with this package for a model, or None if there is none.

    identity: the value of `PacketModel.adapter_identity`. kind: "packet" for the default adapter, which was trained
    with the context anchor, or "paper" for an adapter that was trained without an anchor as in the KV Packet paper, for
    comparison.
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
