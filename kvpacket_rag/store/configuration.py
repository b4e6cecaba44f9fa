"""What a store is built and read with: settings, model, embedder, and how its packets are made.

Settings are recorded at the first `add` and fixed from then on; another model or embedder is refused by name.
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
"""The fact that holds the adapter of a store that does not use the one of the package."""


def _anchors(settings: StoreSettings, adapter: Adapter) -> tuple[Anchor, Anchor]:
    """What chunks see in the first place and in later ones: as set, else as the adapter was trained."""
    first, later = default_anchors(adapter)
    later = Anchor(settings.anchor or later)
    first = Anchor.NONE if later is Anchor.NONE else first
    return Anchor(settings.first_anchor or first), later


def _recorded(connection: sa.Connection) -> dict[str, Any] | None:
    """Settings that hold: none before the first document is in, so that a failed first `add` fixes nothing."""
    if connection.execute(sa.select(documents.c.id).limit(1)).first() is None:
        return None
    settings: dict[str, Any] | None = read_fact(connection, "settings")
    return settings


class Configuration:
    """Settings of one store, with the model and embedder they name, loaded when first needed."""

    def __init__(
        self,
        database: Database,
        location: str,
        namespace: str,
        given: Mapping[str, Any],
        model: Engine | None,
        embedder: Embedder | None,
    ) -> None:
        """given: settings the caller asks for, None where the recorded ones hold.

        Raises `MismatchError` if they, or the model, are not those the store was made with.
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
        """The generator."""
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
        """The embedder."""
        with self._lock:
            if self._embedder is None:
                self._embedder = SentenceEmbedder(self.settings.embedder)
            return self._embedder

    def packet_spec(self, place: int) -> PacketSpec:
        """How packets for a place in the context (0 is first) are made."""
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
        """Cuts documents by the generator's tokens."""
        return Splitter(self.model, self.settings.chunk_tokens)

    def embed(self, text: str) -> Vectors:
        """Embed a question as a unit vector. Raises `MismatchError` if its length is not that of the stored ones."""
        return self.check_vector(unit_vectors(embed_question(self.embedder, text)))

    def check_vector(self, vector: Vectors) -> Vectors:
        """Give the vector back. Raises `MismatchError` if its length is not that of the stored ones."""
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
        """Settle what documents will be built with, before the first is: nothing is written yet.

        Raises `InputError` if chunks do not fit the model, `MismatchError` if the embedder is another one.
        """
        spec, splitter = self.packet_spec(1), self.splitter
        self._check_fit(self.model, spec)
        card = self.model.adapter.card
        if card.far_from(splitter.chunk_tokens):
            logger.warning(
                "Chunks of %d tokens are far from those the adapter was trained on (%d to %d); measure before relying on it.",
                splitter.chunk_tokens, *card.chunk_lengths,
            )  # fmt: skip
        if spec.storage.name == "int4" and self.model.name not in MEASURED_IN_4_BIT:
            logger.warning(
                "What packets in 4 bit cost is not known of %s; measure it with `kvpacket bench fidelity --methods "
                "anchored,anchored-int4 --format needle --format biography` before relying on them.",
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
        """Make packets in another way from now on; those that are there are of no use until they are made anew.

        anchor: default the one the adapter brings. adapter: default the present one; otherwise it is kept with the store.
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
        """Raise `InputError` unless the longest chunk fits the model's positions behind the anchor."""
        around = len(model.adapter.header) + len(model.adapter.trailer) + len(model.text.separator)
        if self.settings.chunk_tokens + around + len(spec.anchor_ids) > model.max_positions:
            raise InputError(
                f"Chunks of {self.settings.chunk_tokens} tokens behind an anchor of {len(spec.anchor_ids)} do not fit the "
                f"{model.max_positions} positions of {model.name}. Choose smaller chunks, or a shorter anchor."
            )

    def record(self, connection: sa.Connection) -> None:
        """Write down what the store is made with, in the transaction of its first document.

        With a later document, compare: another process may have been first. Raises `MismatchError` if it used
        something else.
        """
        if (recorded := _recorded(connection)) is None:
            write_fact(connection, "settings", asdict(self.settings))
            write_fact(connection, "fingerprint", asdict(self.packet_spec(1).fingerprint))
        else:
            merge(recorded, asdict(self.settings), self._location)
            self._compare(connection, self.packet_spec(1).fingerprint, self.model.name)

    def _check_model(self, model: Engine) -> None:
        """Refuse a model other than the one the packets were made with, before anything is read or written."""
        with self._database.reading() as connection:
            if _recorded(connection) is not None:
                spec = self._spec(model, _anchors(self.settings, model.adapter)[1], self.settings)
                self._compare(connection, spec.fingerprint, model.name)

    def _compare(self, connection: sa.Connection, found: Fingerprint, name: str) -> None:
        """Raise `MismatchError` unless the packets of the store were made as `found` says.

        Another adapter, or another anchor trained with one, is another spec for new packets, not another model.
        """
        fields = read_fact(connection, "fingerprint")
        trained = {"anchor": found.anchor} if self.settings.anchor == Anchor.TRAINED else {}
        expected = Fingerprint(**{**fields, "adapter": found.adapter, **trained})
        made_with = read_fact(connection, "settings")["model"]
        expected.check(found, f"The store at {self._location} was built with {made_with}, the model given is {name}")


def read_adapter(connection: sa.Connection) -> bytes | None:
    """The bytes of the store's own adapter, if it has one."""
    text: str | None = read_fact(connection, ADAPTER)
    return None if text is None else base64.b64decode(text)


def write_adapter(connection: sa.Connection, data: bytes | bytearray) -> None:
    """Keep an adapter with the store."""
    write_fact(connection, ADAPTER, base64.b64encode(data).decode())
