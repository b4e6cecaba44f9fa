"""How much a model computes: what a count of floating-point operations needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ModelSize", "model_size"]


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
