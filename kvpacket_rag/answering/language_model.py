"""The common base of the language models of all frameworks: fields, conversation, and the settings of one call."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

from kvpacket_rag.answering.conversation import Conversation
from kvpacket_rag.answering.generation import SETTINGS, GenerationConfig, configured
from kvpacket_rag.engine.assembly import Method
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["LanguageModelComponent"]

MAX_TOKENS = 256


class LanguageModelComponent(BaseModel):
    """A base class for a local model that takes the chunks of a store from packets.

    A framework's language model inherits from it and from the framework's own base class.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    store: DocumentStore | str | Path | None = None
    """The store, or its folder. Without a store, everything is computed."""
    model: Engine | str | None = None
    """A loaded model or a name. The default is the model of the store."""
    method: Method = "packet"
    """With "full", the chunks are computed as well, for comparison."""
    max_tokens: int | None = None
    """Maximum tokens of an answer. The default is 256."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] | None = None
    """Texts that end the answer. They are cut off."""

    _lock: threading.RLock = PrivateAttr(default_factory=threading.RLock)
    _kb: DocumentStore | None = PrivateAttr(default=None)
    _talk: Conversation | None = PrivateAttr(default=None)

    @property
    def opened_store(self) -> DocumentStore | None:
        """The store, opened on first use. Its model is not loaded."""
        if self.store is None or isinstance(self.store, DocumentStore):
            return self.store
        with self._lock:
            if self._kb is None:
                self._kb = DocumentStore.open(self.store, model=self.model, create=False)
            return self._kb

    @property
    def conversation(self) -> Conversation:
        """The conversation. Model and store are opened on first use.

        Raises `InputError` if the store was made with another model.
        """
        with self._lock:
            if self._talk is None:
                # A store that was opened here already has the given model.
                model = self.model if self.store is None or isinstance(self.store, DocumentStore) else None
                self._talk = Conversation.open(self.opened_store, model)
            return self._talk

    @property
    def own_settings(self) -> dict[str, Any]:
        """Generation settings as given to the constructor."""
        return {name: getattr(self, name) for name in (*SETTINGS, "max_tokens", "stop")}

    def generation(self, asked: Mapping[str, Any]) -> GenerationConfig:
        """Return the settings of one call. Raises `InputError` for an unknown setting or a value out of range."""
        who = type(self).__name__
        return configured(configured(GenerationConfig(max_new_tokens=MAX_TOKENS), self.own_settings, who), asked, who)
