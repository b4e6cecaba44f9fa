"""A `VectorStoreIndex` with a query engine, without and with packets. Three lines differ."""

from __future__ import annotations

from pathlib import Path

from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.schema import TextNode

from kvpacket_rag import DocumentStore, PacketModel
from llama_index_kvpacket import KVPacketEmbedding, KVPacketLLM, KVPacketQueryEngine

QUESTION = "How long does the battery of the Halo 3 last on one charge?"


def nodes(corpus: Path) -> list[TextNode]:
    """Return the sections of three documents as nodes."""
    return [
        TextNode(text=section.strip(), metadata={"file": name})
        for name in ("battery-and-charging.md", "cleaning.md", "company-history.md")
        for section in (corpus / name).read_text(encoding="utf-8").split("\n## ")
    ]


def before(index: VectorStoreIndex, model: PacketModel) -> RetrieverQueryEngine:
    """Build the original engine, with a plain local model."""
    llm = KVPacketLLM(model=model, max_tokens=48)
    synthesizer = CompactAndRefine(llm=llm, callback_manager=CallbackManager())
    return RetrieverQueryEngine(index.as_retriever(similarity_top_k=3), response_synthesizer=synthesizer)


def after(index: VectorStoreIndex, model: PacketModel, folder: Path) -> KVPacketQueryEngine:
    """Build the engine with packets: a store for packets, a model that uses the store, and the engine."""
    kb = DocumentStore.open(folder, model=model)
    llm = KVPacketLLM(store=kb, max_tokens=48)
    return KVPacketQueryEngine.from_index(index, llm=llm, similarity_top_k=3)


if __name__ == "__main__":
    loaded = PacketModel.from_pretrained("smollm2-135m-instruct")
    handbook = VectorStoreIndex(nodes(Path("examples/corpus")), embed_model=KVPacketEmbedding())
    for engine in (before(handbook, loaded), after(handbook, loaded, Path("llama-kb"))):
        response = engine.query(QUESTION)
        print(response.response)
    print(response.metadata["kvpacket"])
