"""The trainable parts of an adapter, and their initial values.

An inserted embedding always has an effect. Training therefore starts from tokens with little effect: those that usually
stand between pieces of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from kvpacket_rag.engine.anchors import anchor_ids
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import PARTS
from kvpacket_rag.packets.anchor import Anchor

__all__ = ["Sizes", "Start", "spread", "start_values"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of embeddings in each part of an adapter."""

    header: int = 0
    trailer: int = 0
    bridge: int = 0
    anchor: int = 0
    """Size of the anchor. A new anchor starts from the neutral passages, whichever `Start` the other parts use."""

    def __post_init__(self) -> None:
        numbers = (self.header, self.trailer, self.bridge, self.anchor)
        if min(numbers) < 0 or not any(numbers):
            raise InputError(
                f"An adapter needs at least one embedding, and no part may have a size below 0; got header {self.header}, trailer "
                f"{self.trailer}, bridge {self.bridge}, anchor {self.anchor}."
            )


class Start(StrEnum):
    """The initial values of the embeddings."""

    PRESENT = "present"
    """The parts of the model's adapter, in their present sizes. Parts that it lacks start from delimiters."""

    DELIMITERS = "delimiters"
    """Line breaks, which separate passages."""
    CLOSING = "closing"
    """The first tokens after the documents in the prompt."""
    MEAN = "mean"
    """The mean of the vocabulary's embeddings, with noise of a tenth of their standard deviation."""
    RANDOM = "random"
    """Normal noise with a standard deviation of 0.02, as in the KV Packet paper."""


def start_values(model: PacketModel, sizes: Sizes, start: Start, seed: int) -> dict[str, Tensor]:
    """Return the initial float32 embeddings [n, hidden] of each part."""
    present = {name: getattr(model.adapter, name).detach().float().cpu() for name in PARTS}
    kept = {name: value for name, value in present.items() if start is Start.PRESENT and len(value)}
    generator = torch.Generator().manual_seed(seed)

    def part(n: int) -> Tensor:
        if start is Start.RANDOM:
            return torch.randn(n, model.hidden_size, generator=generator) * 0.02
        if start is Start.MEAN:
            some = model.embeddings(torch.randint(0, model.vocabulary_size, (2048,), generator=generator))
            noise = torch.randn(n, model.hidden_size, generator=generator)
            return some.mean(0) + 0.1 * some.std(0) * noise
        closing = model.text.prompt("?").tail if start is Start.CLOSING else model.text.separator
        return model.embeddings(torch.tensor((closing * n)[:n], dtype=torch.long))

    passages = anchor_ids(model, Anchor.PASSAGES)[len(anchor_ids(model, Anchor.OPENING)) :]
    if sizes.anchor > len(passages) and "anchor" not in kept:
        raise InputError(
            f"The anchor can have up to {len(passages)} embeddings, one for each token of the neutral passages; got {sizes.anchor}."
        )
    anchor = model.embeddings(torch.tensor(passages[len(passages) - sizes.anchor :], dtype=torch.long))
    return {name: part(getattr(sizes, name)) for name in ("header", "trailer", "bridge")} | {"anchor": anchor} | kept


def spread(model: PacketModel) -> float:
    """Return the standard deviation of the model's embeddings of running text, which is the unit of learning rates."""
    return float(model.embeddings(torch.tensor(anchor_ids(model, Anchor.PASSAGES))).float().std())
