"""The settings of a store: the recorded ones, those that a caller gives, and how both are merged."""

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
    """Number format in which the model computes; None until recorded."""
    embedder: str = DEFAULT_EMBEDDER
    dimension: int | None = None
    """Length of the embedder's vectors; None until recorded."""
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    """Largest number of tokens in a chunk."""
    anchor: str | None = None
    """What chunks see before them when their packets are made. Until recorded, None means the anchor of the
    model's adapter, else the neutral passages."""
    anchor_texts: tuple[str, ...] = ()
    """Passages of a corpus anchor."""
    first_anchor: str | None = None
    """The anchor for the chunk that stands first in the context. If it differs from `anchor`, such a chunk has a second
    packet, which is built when the chunk first stands there."""
    storage: str | None = None
    """Number format of stored packets: float32, bfloat16, float16, int8 or int4. Until recorded, None means int8."""

    def __post_init__(self) -> None:
        check_kind(self.chunk_tokens, int, "chunk_tokens")
        storage_named(self.storage)
        if self.chunk_tokens < MIN_CHUNK_TOKENS:
            raise InputError(f"chunk_tokens must be at least {MIN_CHUNK_TOKENS}, got {self.chunk_tokens}.")
        object.__setattr__(self, "anchor_texts", tuple(self.anchor_texts))  # JSON has lists only
        for name in ("anchor", "first_anchor"):
            if getattr(self, name) not in (None, *Anchor):
                raise InputError(f"{name} must be one of {', '.join(Anchor)}; got {getattr(self, name)!r}.")


def asked(
    model: Engine | str | None, embedder: Embedder | str | None, anchor: Anchor | str | None,
    first_anchor: Anchor | str | None, chunk_tokens: int | None, storage: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that a caller asks for, in the form in which they are recorded; None keeps the recorded one.

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
    """Merge the recorded settings with those that the caller gives. None means "as recorded".

    Raises `MismatchError` if a given setting differs from the recorded one. The model is left out here, because models
    are compared by fingerprint, not by name.
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
    """Return what the settings record for a model, given by name or loaded; None for None.

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
    """Return what the settings record for an embedder, given by name or loaded; None for None.

    Raises `InputError` for anything else.
    """
    if embedder is None or isinstance(embedder, str):
        return embedder
    do = "Give a name, SentenceEmbedder(...), or an object with `name` and `embed(texts)`."
    check_kind(embedder, Embedder, "The embedder", do)
    return embedder.name
