"""Hashes that tell one model, tokenizer or rotation rule from another."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from kvpacket_rag.packet import StateLayout, canonical, short_hash

__all__ = ["config_hash", "layout_hash", "layout_hashes", "rope_hash", "tokenizer_hash", "weights_hash"]

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
"""Numbers read from each weight tensor."""


def config_hash(config: Any) -> str:
    """Hash of a configuration without what does not change the states (paths, library version, token ids).

    Only what differs from the defaults counts, so that a release of transformers may add fields.
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
    """Hash of evenly spaced numbers of every parameter: tells apart models of one shape, cheaply."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        flat = weight.detach().flatten()
        step = max(1, flat.numel() // SAMPLE)
        digest.update(name.encode())
        digest.update(flat[::step][:SAMPLE].float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash of everything that decides which ids a text gets."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    # Whoever tokenises last may have set these; no text of ours is cut or padded.
    parts["truncation"] = parts["padding"] = None
    return short_hash(canonical(parts))


def rope_hash(layout: StateLayout) -> str:
    """Hash of the rotation rule and frequencies of every group."""
    rules = [
        None
        if g.rotation is None
        else [g.rotation.tensor, g.rotation.layout, g.rotation.offset, g.rotation.inv_freq.tolist()]
        for g in layout.groups
    ]
    return short_hash(canonical(rules))


def layout_hash(layout: StateLayout) -> str:
    """Hash of which layers cache what shapes: changes when a release of transformers caches something else."""
    return short_hash(canonical([[list(g.layers), list(g.key_shape), list(g.value_shape)] for g in layout.groups]))


def layout_hashes(config: Any, layout: StateLayout) -> tuple[str, str, str]:
    """What a fingerprint says of the kind of states a model caches: its fields model, rope and cache."""
    return config_hash(config), rope_hash(layout), layout_hash(layout)
