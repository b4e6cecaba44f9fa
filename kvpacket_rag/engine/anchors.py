"""Token ids of an anchor for a model, and the specification of packets that are encoded after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpacket_rag.engine.chat import PromptStyle
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.anchor import PASSAGES, Anchor
from kvpacket_rag.packets.fingerprint import DEFAULT_NAMESPACE, Fingerprint
from kvpacket_rag.packets.number_formats import Storage
from kvpacket_rag.packets.packet import Packet

__all__ = ["PacketSpec", "anchor_ids", "encode_in_place"]


def anchor_ids(model: Engine, anchor: Anchor, texts: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the token ids of an anchor for a model. Ids below zero stand for the embeddings of its adapter's anchor.

    texts: the passages of a corpus anchor. Raises `InputError` for a trained anchor if the adapter has none, and for a
    corpus anchor without texts.
    """
    if anchor is Anchor.NONE:
        return ()
    opening = model.text.prompt("?", style=PromptStyle()).prefix
    if anchor is Anchor.OPENING:
        return opening
    if anchor is Anchor.TRAINED:
        count = len(model.adapter.anchor)
        if not count:
            raise InputError(
                f"The trained anchor needs an adapter that has an anchor, but {model.name} has no such adapter loaded. Load one, or "
                f"choose the anchor {Anchor.PASSAGES.value!r}."
            )
        return opening + tuple(range(-1, -1 - count, -1))
    if anchor is Anchor.CORPUS and not texts:
        raise InputError(
            "The corpus anchor needs passages from the store's own documents. Run `kvpacket tune-anchor KB` to select them."
        )
    passages = (
        model.text.plain(passage) + model.text.separator for passage in (texts if anchor is Anchor.CORPUS else PASSAGES)
    )
    return opening + tuple(token for ids in passages for token in ids)


def encode_in_place(
    model: Engine, chunks: Sequence[Sequence[int]], *, first: Sequence[int], later: Sequence[int]
) -> list[Packet]:
    """Encode chunks into packets for their places in a context.

    first: anchor of the first chunk. later: anchor of the other chunks.
    """
    return model.encode(chunks[:1], anchor=first) + model.encode(chunks[1:], anchor=later)


@dataclass(frozen=True, eq=False)
class PacketSpec:
    """How packets for one place in a context are encoded and stored."""

    anchor: Anchor
    anchor_ids: tuple[int, ...]
    fingerprint: Fingerprint
    storage: Storage

    @classmethod
    def of(
        cls, model: Engine, anchor: Anchor, storage: Storage, texts: Sequence[str] = (), namespace: str = DEFAULT_NAMESPACE
    ) -> PacketSpec:  # fmt: skip
        """Return the spec of packets that are encoded after `anchor` and stored as `storage`.

        texts: the passages of a corpus anchor.
        """
        ids = anchor_ids(model, anchor, texts)
        return cls(anchor, ids, model.fingerprint(namespace=namespace, anchor=ids, storage=storage.name), storage)
