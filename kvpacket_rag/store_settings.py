"""The settings of a store: what is recorded, what a caller gives, and what both make together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvpacket_rag.anchor import Anchor
from kvpacket_rag.chunking import DEFAULT_CHUNK_TOKENS, MIN_CHUNK_TOKENS
from kvpacket_rag.embedding import DEFAULT_EMBEDDER, Embedder
from kvpacket_rag.errors import InputError, MismatchError, check_kind
from kvpacket_rag.model import PacketModel
from kvpacket_rag.precision import storage_named

__all__ = ["DEFAULT_MODEL", "StoreSettings", "merge", "name_of"]

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class StoreSettings:
    """How the documents of a store are split, embedded and encoded."""

    model: str = DEFAULT_MODEL
    """The generator: catalogue name, Hugging Face id, or path."""
    compute: str | None = None
    """Number format the model computes in; None until recorded."""
    embedder: str = DEFAULT_EMBEDDER
    dimension: int | None = None
    """Length of the embedder's vectors; None until recorded."""
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    """Most tokens of a chunk."""
    anchor: str | None = None
    """What chunks see when their packets are made; until recorded, None is what the model's adapter brings, else
    the neutral passages."""
    anchor_texts: tuple[str, ...] = ()
    """Passages of a corpus anchor."""
    first_anchor: str | None = None
    """The same for the chunk that stands first in the context. If it differs from `anchor`, such a chunk has a second
    packet, built when it first stands there."""
    storage: str | None = None
    """Number format of packets at rest: float32, bfloat16, float16, int8 or int4; until recorded, None is int8."""

    def __post_init__(self) -> None:
        check_kind(self.chunk_tokens, int, "chunk_tokens")
        storage_named(self.storage)
        if self.chunk_tokens < MIN_CHUNK_TOKENS:
            raise InputError(f"chunk_tokens must be at least {MIN_CHUNK_TOKENS}, got {self.chunk_tokens}.")
        object.__setattr__(self, "anchor_texts", tuple(self.anchor_texts))  # JSON knows lists only
        for name in ("anchor", "first_anchor"):
            if getattr(self, name) not in (None, *Anchor):
                raise InputError(f"{name} must be one of {', '.join(Anchor)}; got {getattr(self, name)!r}.")


def merge(recorded: Mapping[str, Any] | None, given: Mapping[str, Any], location: str) -> StoreSettings:
    """Join what is recorded with what the caller gives (None is "as recorded").

    Raises `MismatchError` where both are given and differ. The model is left out here: models are compared by
    fingerprint, not by what they are called.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if recorded is None:
        return StoreSettings(**given)
    recorded = {**asdict(StoreSettings()), **recorded}
    for key, value in given.items():
        if recorded[key] != value and key not in ("model", "anchor_texts"):
            raise MismatchError(
                f"The store at {location} was made with {key} {recorded[key]!r}, now {value!r} is given. Leave it out, or build another store.",
                field=key, expected=recorded[key], found=value,
            )  # fmt: skip
    return StoreSettings(**recorded)


def name_of(component: PacketModel | Embedder | str | None, kind: type[PacketModel] | type[Embedder]) -> str | None:
    """What the settings call a model or an embedder that is given by name or loaded, None for none.

    Raises `InputError` for anything else, such as the model of another library.
    """
    if component is None or isinstance(component, str):
        return component
    if kind is PacketModel:
        do = "Give a name, a folder, or PacketModel.from_pretrained(...)."
    else:
        do = "Give a name, SentenceEmbedder(...), or an object with `name` and `embed(texts)`."
    check_kind(component, kind, "The model" if kind is PacketModel else "The embedder", do)
    return component.source if isinstance(component, PacketModel) else component.name
