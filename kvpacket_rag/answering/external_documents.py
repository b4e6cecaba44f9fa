"""Documents that other software gives: texts it finds elsewhere, and ids it may use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kvpacket_rag.corpus.document import Chunk, Document
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["ADOPTED", "adopt", "check_own"]

ADOPTED = "retrieved"
"""Source of adopted texts, and the beginning of their documents' ids."""


def adopt(store: DocumentStore, texts: Iterable[str]) -> dict[str, Chunk]:
    """Give the chunk of each text; those the store lacks are added to it in one go.

    They are known by their text alone: searches of the store do not find them. Texts without a visible character,
    and those that fill half the model's window, can have none and are left out.
    """
    texts = {text for text in texts if text.strip()}
    with store.adopting:  # so that threads which find the same new text do not all encode it
        found = {text: store.find_whole(text) for text in texts}
        new = [
            Document(text, id=f"{ADOPTED}/{_name(text)}", source=ADOPTED, whole=True, vector=())
            for text, chunk in found.items()
            if chunk is None and len(store.model.text.plain(text)) < store.model.max_positions // 2
        ]
        if new:
            store.add(new)
            found |= {document.text: store.find_whole(document.text) for document in new}
    return {text: chunk for text, chunk in found.items() if chunk is not None}


def check_own(store: DocumentStore, ids: Sequence[str], source: str, framework: str) -> None:
    """Raise `InputError` if a document of one of these ids has another source than `source`, which stands for `framework`."""
    if others := [hit.chunk.document for hit in store.of_documents(ids) if hit.source != source]:
        raise InputError(
            f"{others[0]!r} is a document of the store itself, added without {framework}; choose other ids."
        )


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
