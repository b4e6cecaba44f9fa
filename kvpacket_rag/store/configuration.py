"""The configuration of a store: settings, model, embedder, and how its packets are made.

The first `add` records the settings and fixes them. After that, a different model or embedder is refused, and the error
names both.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from kvpacket_rag.corpus.splitter import Splitter
from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.engine.loading import load_engine
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError, MismatchError, check_kind
from kvpacket_rag.packets.adapter import SHIPPED, Adapter
from kvpacket_rag.packets.anchor import Anchor, default_anchors
from kvpacket_rag.packets.fingerprint import Fingerprint
from kvpacket_rag.packets.number_formats import MEASURED_IN_4_BIT, storage_named
from kvpacket_rag.retrieval.embedder import Embedder, SentenceEmbedder, Vectors, embed_question, unit_vectors
from kvpacket_rag.store.database.database import Database, read_fact, write_fact
from kvpacket_rag.store.database.schema import documents
from kvpacket_rag.store.settings import StoreSettings, merge

__all__ = ["ADAPTER", "Configuration", "read_adapter", "write_adapter"]

logger = logging.getLogger(__name__)

ADAPTER = "adapter"
"""The fact that holds the store's own adapter, if the store does not use the adapter of the package."""


def _anchors(settings: StoreSettings, adapter: Adapter) -> tuple[Anchor, Anchor]:
    """Return the anchors of the first place and of later places: as set, else as in the adapter's training."""
    first, later = default_anchors(adapter)
    later = Anchor(settings.anchor or later)
    first = Anchor.NONE if later is Anchor.NONE else first
    return Anchor(settings.first_anchor or first), later


def _recorded(connection: sa.Connection) -> dict[str, Any] | None:
    """Return the recorded settings, or None if the store has no documents.

    They count only once a document is stored, so that a failed first `add` fixes nothing.
    """
    if connection.execute(sa.select(documents.c.id).limit(1)).first() is None:
        return None
    settings: dict[str, Any] | None = read_fact(connection, "settings")
    return settings


class Configuration:
    """Settings of one store, with the model and embedder they name, which are loaded on first use."""

    def __init__(
        self,
        database: Database,
        location: str,
        namespace: str,
        given: Mapping[str, Any],
        model: Engine | None,
        embedder: Embedder | None,
    ) -> None:
        """given: settings that the caller asks for; None keeps the recorded one.

        Raises `MismatchError` if these settings or the model differ from those the store was built with.
        """
        self._database, self._location, self._namespace = database, location, namespace
        with database.reading() as connection:
            recorded, own = _recorded(connection), read_adapter(connection)
        self.settings = merge(recorded, given, location)
        self._own = None if own is None else Adapter.from_bytes(own, f"The adapter of the store at {location}")
        self._model_name = given.get("model") or self.settings.model
        self._model, self._embedder = model, embedder
        self._specs: dict[Anchor, PacketSpec] = {}
        self._lock = threading.RLock()
        if model is not None:
            self._model = model if self._own is None else model.with_adapter(self._own)
            self._check_model(self._model)

    @property
    def model(self) -> Engine:
        """The generator, loaded on first use."""
        with self._lock:
            if self._model is None:
                model = self._load_model()
                self._check_model(model)
                self._model = model
            return self._model

    def _load_model(self) -> Engine:
        adapter = self._own or SHIPPED
        return load_engine(self._model_name, dtype=self.settings.compute, adapter=adapter)

    @property
    def embedder(self) -> Embedder:
        """The embedder, loaded on first use."""
        with self._lock:
            if self._embedder is None:
                self._embedder = SentenceEmbedder(self.settings.embedder)
            return self._embedder

    def packet_spec(self, place: int) -> PacketSpec:
        """Return the spec of packets for a place in the context. Place 0 is the first."""
        anchor = _anchors(self.settings, self.model.adapter)[min(place, 1)]
        with self._lock:
            if anchor not in self._specs:
                self._specs[anchor] = self._spec(self.model, anchor, self.settings)
            return self._specs[anchor]

    def _spec(self, model: Engine, anchor: Anchor, settings: StoreSettings) -> PacketSpec:
        storage = storage_named(settings.storage)
        return PacketSpec.of(model, anchor, storage, settings.anchor_texts, self._namespace)

    @cached_property
    def splitter(self) -> Splitter:
        """The splitter, which counts the generator's tokens."""
        return Splitter(self.model, self.settings.chunk_tokens)

    def embed(self, text: str) -> Vectors:
        """Embed a question as a unit vector. Raises `MismatchError` if its length differs from stored vectors."""
        return self.check_vector(unit_vectors(embed_question(self.embedder, text)))

    def check_vector(self, vector: Vectors) -> Vectors:
        """Return the vector unchanged. Raises `MismatchError` if its length differs from stored vectors."""
        expected = self.settings.dimension
        if expected not in (None, len(vector)):
            raise MismatchError(
                f"The store at {self._location} holds vectors of {expected} numbers, the embedder {self.embedder.name} gives "
                f"{len(vector)}. Open it with the embedder it was made with ({self.settings.embedder}).",
                field="dimension",
                expected=expected,
                found=len(vector),
            )
        return vector

    def prepare(self) -> None:
        """Determine all settings before the first document is built. Nothing is written yet.

        Raises `InputError` if chunks do not fit the model, `MismatchError` if the embedder is a different one.
        """
        spec, splitter = self.packet_spec(1), self.splitter
        self._check_fit(self.model, spec)
        card = self.model.adapter.card
        if card.far_from(splitter.chunk_tokens):
            logger.warning(
                "Chunks of %d tokens are far from those the adapter was trained on (%d to %d). Measure before you rely on it.",
                splitter.chunk_tokens, *card.chunk_lengths,
            )  # fmt: skip
        if spec.storage.name == "int4" and self.model.name not in MEASURED_IN_4_BIT:
            logger.warning(
                "The fidelity of 4-bit packets is not known for %s. Measure it with `kvpacket bench fidelity --methods "
                "anchored,anchored-int4 --format needle --format biography` before you rely on them.",
                self.model.name,
            )
        self.settings = replace(
            self.settings,
            model=self.model.source,
            compute=spec.fingerprint.compute,
            embedder=self.embedder.name,
            dimension=self.settings.dimension or len(self.embed("dimension")),
            storage=spec.fingerprint.storage,
            anchor=spec.anchor.value,
            first_anchor=self.packet_spec(0).anchor.value,
        )

    def change(self, anchor: Anchor | None, texts: Sequence[str] = (), adapter: Adapter | None = None) -> None:
        """Change how packets are made from now on. Existing packets are of no use until they are rebuilt.

        anchor: default the anchor of the adapter. texts: the passages of a corpus anchor.
        adapter: default the current one; a new one is saved in the store.
        Raises `AdapterError` if the adapter belongs to another model.
        """
        check_kind(adapter, (Adapter, type(None)), "The adapter", "Read one with Adapter.load(path).")
        with self._lock:
            model = (self._model or self._load_model()).with_adapter(adapter) if adapter is not None else self.model
            first, later = default_anchors(model.adapter)
            settings = replace(
                self.settings, first_anchor=(first if adapter is not None else self.packet_spec(0).anchor).value,
                anchor=(anchor or later).value, anchor_texts=tuple(texts),
            )  # fmt: skip
            spec = self._spec(model, anchor or later, settings)
            self._check_fit(model, spec)
            with self._database.writing() as connection:
                if adapter is not None:
                    write_adapter(connection, adapter.to_bytes())
                if _recorded(connection) is not None:
                    write_fact(connection, "settings", asdict(settings))
                    write_fact(connection, "fingerprint", asdict(spec.fingerprint))
            self._model, self.settings, self._specs = model, settings, {}
            self._own = adapter or self._own

    def _check_fit(self, model: Engine, spec: PacketSpec) -> None:
        """Raise `InputError` unless the anchor and the longest chunk together fit the model's positions."""
        around = len(model.adapter.header) + len(model.adapter.trailer) + len(model.text.separator)
        if self.settings.chunk_tokens + around + len(spec.anchor_ids) > model.max_positions:
            raise InputError(
                f"Chunks of {self.settings.chunk_tokens} tokens behind an anchor of {len(spec.anchor_ids)} do not fit the "
                f"{model.max_positions} positions of {model.name}. Choose smaller chunks, or a shorter anchor."
            )

    def record(self, connection: sa.Connection) -> None:
        """Record the settings of the store, in the transaction of its first document.

        For a later document, compare them instead, because another process may have been first. Raises `MismatchError`
        if that process used different settings.
        """
        if (recorded := _recorded(connection)) is None:
            write_fact(connection, "settings", asdict(self.settings))
            write_fact(connection, "fingerprint", asdict(self.packet_spec(1).fingerprint))
        else:
            merge(recorded, asdict(self.settings), self._location)
            self._compare(connection, self.packet_spec(1).fingerprint, self.model.name)

    def _check_model(self, model: Engine) -> None:
        """Raise `MismatchError` if the packets were made with a different model, before anything is read or written."""
        with self._database.reading() as connection:
            if _recorded(connection) is not None:
                spec = self._spec(model, _anchors(self.settings, model.adapter)[1], self.settings)
                self._compare(connection, spec.fingerprint, model.name)

    def _compare(self, connection: sa.Connection, found: Fingerprint, name: str) -> None:
        """Raise `MismatchError` unless the packets of the store match the fingerprint `found`.

        A different adapter, or a different anchor trained with one, changes the spec of new packets. It does not count
        as a different model.
        """
        fields = read_fact(connection, "fingerprint")
        trained = {"anchor": found.anchor} if self.settings.anchor == Anchor.TRAINED else {}
        expected = Fingerprint(**{**fields, "adapter": found.adapter, **trained})
        made_with = read_fact(connection, "settings")["model"]
        expected.check(found, f"The store at {self._location} was built with {made_with}, the model given is {name}")


def read_adapter(connection: sa.Connection) -> bytes | None:
    """Return the bytes of the store's own adapter, or None if it has none."""
    text: str | None = read_fact(connection, ADAPTER)
    return None if text is None else base64.b64decode(text)


def write_adapter(connection: sa.Connection, data: bytes | bytearray) -> None:
    """Save an adapter in the store."""
    write_fact(connection, ADAPTER, base64.b64encode(data).decode())
