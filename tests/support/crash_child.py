"""Adds, changes, removes, exports and takes in documents until it is killed. Its own module, so that the fork server imports it once."""

from __future__ import annotations

import torch

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.store.bundles.importer import import_bundle
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder, tiny_model

torch.set_num_threads(1)
MODEL = tiny_model()


def document(number: int, version: int) -> Document:
    shared = "Every document holds this sentence."
    return Document(f"Number {number} in version {version} is about topic{number}. {shared}", id=f"doc{number}")


def open_at(folder: str) -> DocumentStore:
    return DocumentStore.open(
        folder, model=MODEL, embedder=HashEmbedder(), chunk_tokens=60, storage="float32", first_anchor="passages"
    )


def take_in(bundle: str, folder: str, started) -> None:
    started.set()
    import_bundle(bundle, folder)


def run(folder: str, started) -> None:
    store = open_at(folder)
    started.set()
    for version in range(1000):
        store.add(document(number, version) for number in range(6))
        store.remove("doc5")
        store.collect_garbage()
        store.export(f"{folder}.kvpb")
