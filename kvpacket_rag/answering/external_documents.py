"""Documents from other software: adding texts that it retrieved elsewhere, and checking the ids that it uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kvpacket_rag.corpus.document import Chunk, Document
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore

__all__ = ["ADOPTED", "adopt", "check_own"]

ADOPTED = "retrieved"
"""Source of adopted texts, and the beginning of their document ids."""


def adopt(store: DocumentStore, texts: Iterable[str]) -> dict[str, Chunk]:
    """Return the chunk of each text. Texts that the store lacks are added to it in one call.

    Added texts are recognised by their text alone, and searches of the store do not find them. Texts without a visible
    character, and texts that fill half of the model's window, cannot have a chunk and are left out.
    """
    texts = {text for text in texts if text.strip()}
    with store.adopting:  # so that threads with the same new text do not all encode it
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
    """Raise `InputError` if a document with one of these ids was not added by `framework`.

    source: the source of the documents that `framework` adds.
    """
    if others := [hit.chunk.document for hit in store.of_documents(ids) if hit.source != source]:
        raise InputError(
            f"{others[0]!r} is a document of the store itself, added without {framework}; choose other ids."
        )


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
