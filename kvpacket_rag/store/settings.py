"""The settings of a store: what is recorded, what a caller gives, and what both make together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvpacket_rag.corpus.splitter import DEFAULT_CHUNK_TOKENS, MIN_CHUNK_TOKENS
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError, MismatchError, check_kind
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.number_formats import storage_named
from kvpacket_rag.retrieval.embedder import DEFAULT_EMBEDDER, Embedder

__all__ = ["DEFAULT_MODEL", "StoreSettings", "asked", "embedder_name", "merge", "model_source"]

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


def asked(
    model: Engine | str | None, embedder: Embedder | str | None, anchor: Anchor | str | None,
    first_anchor: Anchor | str | None, chunk_tokens: int | None, storage: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that a caller asks for, as they are recorded; None where the recorded ones hold.

    Raises `InputError` for a model or an embedder of another library.
    """
    return {
        "model": model_source(model),
        "embedder": embedder_name(embedder),
        "chunk_tokens": chunk_tokens,
        "anchor": None if anchor is None else str(anchor),
        "first_anchor": None if first_anchor is None else str(first_anchor),
        "storage": storage,
    }


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


def model_source(model: Engine | str | None) -> str | None:
    """Return what the settings record of a model that is given by name or loaded; None for None.

    Raises `InputError` for anything else, such as the model of another library.
    """
    if model is None or isinstance(model, str):
        return model
    if not isinstance(model, Engine):
        raise InputError(
            f"The model must be of the kind PacketModel, got {type(model).__name__}. "
            "Give a name, a folder, or PacketModel.from_pretrained(...)."
        )
    return model.source


def embedder_name(embedder: Embedder | str | None) -> str | None:
    """Return what the settings record of an embedder that is given by name or loaded; None for None.

    Raises `InputError` for anything else.
    """
    if embedder is None or isinstance(embedder, str):
        return embedder
    do = "Give a name, SentenceEmbedder(...), or an object with `name` and `embed(texts)`."
    check_kind(embedder, Embedder, "The embedder", do)
    return embedder.name
