"""Hashes that identify a model, a tokenizer or a rotation rule, and the size of a model."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from kvpacket_rag.packets.adapter import PARTS, Adapter
from kvpacket_rag.packets.fingerprint import canonical, short_hash
from kvpacket_rag.packets.packet import StateLayout

__all__ = [
    "ModelSize",
    "config_hash",
    "describe",
    "layout_hash",
    "layout_hashes",
    "model_size",
    "rope_hash",
    "tokenizer_hash",
    "weights_hash",
]

_VOLATILE = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "architectures",
    "_attn_implementation_autoset",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
}
SAMPLE = 64
"""Number of values that are read from each weight tensor."""


def config_hash(config: Any) -> str:
    """Return the hash of a configuration without the values that do not change the states.

    Such values are paths, the library version and token ids. Only values that differ from the defaults count, so that a
    release of transformers can add fields without changing the hash.
    """
    values = {key: value for key, value in config.to_diff_dict().items() if key not in _VOLATILE}
    return short_hash(canonical([type(config).__name__, _plain(values)]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in (sorted(value, key=str) if isinstance(value, set) else value)]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


@torch.no_grad()
def weights_hash(model: torch.nn.Module) -> str:
    """Return a hash of evenly spaced numbers of every parameter. It cheaply distinguishes models of the same shape."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        flat = weight.detach().flatten()
        step = max(1, flat.numel() // SAMPLE)
        digest.update(name.encode())
        digest.update(flat[::step][:SAMPLE].float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def tokenizer_hash(tokenizer: Any) -> str:
    """Return the hash of everything that determines the token ids of a text."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    # Other users of the tokenizer may have set these. This package does not truncate or pad text.
    parts["truncation"] = parts["padding"] = None
    return short_hash(canonical(parts))


def rope_hash(layout: StateLayout) -> str:
    """Return the hash of the rotation rule and frequencies of every group."""
    rules = [
        None
        if g.rotation is None
        else [g.rotation.tensor, g.rotation.layout, g.rotation.offset, g.rotation.inv_freq.tolist()]
        for g in layout.groups
    ]
    return short_hash(canonical(rules))


def layout_hash(layout: StateLayout) -> str:
    """Return the hash of the shapes that each layer caches. It changes when transformers caches other states."""
    return short_hash(canonical([[list(g.layers), list(g.key_shape), list(g.value_shape)] for g in layout.groups]))


def layout_hashes(config: Any, layout: StateLayout) -> tuple[str, str, str]:
    """Return the fingerprint fields that describe the states that a model caches: model, rope and cache."""
    return config_hash(config), rope_hash(layout), layout_hash(layout)


@dataclass(frozen=True)
class ModelSize:
    """The numbers that determine the cost of a forward pass."""

    layers: int
    layer_parameters: int
    """Number of weights in all layers. All experts of a mixture of experts count, so the cost is an upper bound."""
    attention_width: int
    """Query heads × head dimension of one layer."""
    head_parameters: int
    """Number of weights in the output matrix."""

    def flops(self, *, tokens: int, keys: int, layers: int | None, logits: int) -> float:
        """Return the operations of one pass: two per weight and token, four per attended key and query dimension.

        tokens: number of tokens that run. keys: number of attended keys, summed over the tokens. layers: number of
        layers that run, or None for all. logits: number of tokens whose logits are computed.
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
    """Return one line that describes a model, with the size of the states of one token in the model's number format."""
    numbers = sum(len(g.layers) * (math.prod(g.key_shape) + math.prod(g.value_shape)) for g in layout.groups)
    parts = [f"{part} {len(getattr(adapter, part))}" for part in PARTS if len(getattr(adapter, part))]
    return (
        f"PacketModel({name!r}, {layout.n_layers} layers, {str(dtype).removeprefix('torch.')} on {device}, {positions} positions, "
        f"{numbers * dtype.itemsize / 1024:.1f} KiB per token, {'adapter of ' + ', '.join(parts) if parts else 'no adapter'})"
    )
