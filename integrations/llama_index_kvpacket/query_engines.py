"""`KVPacketQueryEngine`: a query engine with a retriever, postprocessors and answers from packets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document

import kvpacket_rag
from kvpacket_rag import DocumentStore
from kvpacket_rag.errors import InputError
from llama_index_kvpacket.llms import KVPacketLLM
from llama_index_kvpacket.retrievers import KVPacketRetriever
from llama_index_kvpacket.synthesizers import KVPacketSynthesizer

__all__ = ["KVPacketQueryEngine"]


class KVPacketQueryEngine(RetrieverQueryEngine):
    """A `RetrieverQueryEngine` that answers from packets. It never uses the global Settings."""

    @classmethod
    def from_retriever(
        cls, retriever: BaseRetriever, *, llm: KVPacketLLM | None = None, store: DocumentStore | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (), streaming: bool = False,
        callback_manager: CallbackManager | None = None, **options: Any,
    ) -> KVPacketQueryEngine:  # fmt: skip
        """Build an engine over any retriever.

        Give the model, or the store whose model and packets to use. If another retriever finds texts that the store
        lacks, their packets are built when they are first found. options: see `KVPacketSynthesizer`.
        """
        llm = _model(llm, store, retriever)
        known = llm.conversation.store
        if isinstance(retriever, KVPacketRetriever) and known is not None and _where(retriever.store) != _where(known):
            raise InputError(
                f"The retriever uses {_where(retriever.store)}, but the model uses {_where(known)}. Give both the same store."
            )
        if known is not None and not isinstance(retriever, KVPacketRetriever):
            retriever = KVPacketRetriever(known, base_retriever=retriever)
        synthesizer = KVPacketSynthesizer(llm, streaming=streaming, callback_manager=callback_manager, **options)
        return cls(retriever, synthesizer, list(node_postprocessors), callback_manager)

    @classmethod
    def from_index(
        cls, index: BaseIndex[Any], *, llm: KVPacketLLM | None = None, store: DocumentStore | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (), streaming: bool = False,
        callback_manager: CallbackManager | None = None, text_qa_template: Any = None, best_last: bool = False,
        empty_response: str | None = None, **retriever_options: Any,
    ) -> KVPacketQueryEngine:  # fmt: skip
        """Build an engine over an index. retriever_options: for `index.as_retriever`, such as `similarity_top_k`."""
        return cls.from_retriever(
            index.as_retriever(**retriever_options), llm=llm, store=store, node_postprocessors=node_postprocessors,
            streaming=streaming, callback_manager=callback_manager, text_qa_template=text_qa_template, best_last=best_last, empty_response=empty_response,
        )  # fmt: skip

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], *, store: DocumentStore, similarity_top_k: int = 4, **options: Any
    ) -> KVPacketQueryEngine:
        """Build an engine over documents, which the store splits, embeds and stores. Unchanged documents cost nothing.

        The model sees their text but not their metadata, which is stored for filters. Random ids from LlamaIndex are
        replaced by hashes of text and metadata. Documents without a visible character are left out.
        """
        new = [
            kvpacket_rag.Document(
                document.text, id="" if _drawn(document.doc_id) else document.doc_id, metadata=document.metadata
            )
            for document in documents
            if document.text.strip()
        ]
        store.add(list({document.id: document for document in new}.values()))
        return cls.from_retriever(KVPacketRetriever(store, similarity_top_k=similarity_top_k), store=store, **options)


def _drawn(name: str) -> bool:
    """Return whether an id is a random one, which LlamaIndex generates for a document without an id."""
    try:
        return uuid.UUID(name).version == 4
    except ValueError:
        return False


def _model(llm: KVPacketLLM | None, store: DocumentStore | None, retriever: BaseRetriever) -> KVPacketLLM:
    if llm is not None and store is not None:
        raise InputError("Give either the model or the store, because the model has its own store.")
    if llm is None and store is None and isinstance(retriever, KVPacketRetriever):
        store = retriever.store
    if llm is None and store is None:
        raise InputError("Give llm=KVPacketLLM(store=...) or store=..., so that there are packets to answer from.")
    return llm or KVPacketLLM(store=store)


def _where(store: DocumentStore) -> str:
    return f"{store.location} (namespace {store.namespace})"
