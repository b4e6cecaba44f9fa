"""A store of real documents with the default model, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.store.document_store import DocumentStore

CORPUS = Path(__file__).parents[2] / "examples" / "corpus"


@pytest.fixture(scope="session")
def handbook_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentStore]:
    """Some documents of the handbook, answered by the default model and embedder."""
    model = PacketModel.from_pretrained("smollm2-135m-instruct")
    with DocumentStore.open(tmp_path_factory.mktemp("langchain") / "kb", model=model) as store:
        store.add_paths([CORPUS / name for name in ("battery-and-charging.md", "company-history.md", "cleaning.md")])
        yield store
