"""How large a model is: what a count of floating-point operations needs to know, and the model in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kvpacket_rag.adapter import PARTS, Adapter
from kvpacket_rag.packet import StateLayout

__all__ = ["ModelSize", "describe", "model_size"]


@dataclass(frozen=True)
class ModelSize:
    """Numbers that decide what a forward pass costs."""

    layers: int
    layer_parameters: int
    """Weights of all layers; of a mixture of experts all experts count, so that its cost is an upper bound."""
    attention_width: int
    """Query heads × head dimension of one layer."""
    head_parameters: int
    """Weights of the output matrix."""

    def flops(self, *, tokens: int, keys: int, layers: int | None, logits: int) -> float:
        """Operations of one pass: two for each weight and token, four for each attended key and query dimension.

        tokens: how many are run; keys: attended to, summed over the tokens; layers: run, default all; logits: tokens
        whose logits are computed.
        """
        share = (self.layers if layers is None else layers) / self.layers
        linear = 2 * tokens * self.layer_parameters
        attended = 4 * keys * self.attention_width * self.layers
        return share * (linear + attended) + 2 * logits * self.head_parameters


def model_size(hf_model: Any) -> ModelSize:
    """Count the weights of a Hugging Face model."""
    config = hf_model.config.get_text_config()
    embeddings = {id(p) for module in _ends(hf_model) for p in module.parameters()}
    inner = sum(p.numel() for p in hf_model.parameters() if id(p) not in embeddings)
    dimension = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSize(
        layers=config.num_hidden_layers,
        layer_parameters=inner,
        attention_width=config.num_attention_heads * dimension,
        head_parameters=config.hidden_size * config.vocab_size,
    )


def _ends(hf_model: Any) -> list[Any]:
    ends = (hf_model.get_input_embeddings(), hf_model.get_output_embeddings())
    return [module for module in ends if module is not None]


def describe(
    name: str, layout: StateLayout, dtype: torch.dtype, device: torch.device, positions: int, adapter: Adapter
) -> str:
    """Say in one line what a model is, and how many bytes the states of a token take in the format it computes in."""
    numbers = sum(len(g.layers) * (math.prod(g.key_shape) + math.prod(g.value_shape)) for g in layout.groups)
    parts = [f"{part} {len(getattr(adapter, part))}" for part in PARTS if len(getattr(adapter, part))]
    return (
        f"PacketModel({name!r}, {layout.n_layers} layers, {str(dtype).removeprefix('torch.')} on {device}, {positions} positions, "
        f"{numbers * dtype.itemsize / 1024:.1f} KiB per token, {'adapter of ' + ', '.join(parts) if parts else 'no adapter'})"
    )
