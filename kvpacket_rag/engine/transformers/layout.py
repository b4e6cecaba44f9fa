"""The layout of the states that a model caches and their rotation rules: derived from the model, then proved on it.

No architecture is known by name. The model runs a dozen tokens at position 0 and again at a distant position. For every
layer, the module then searches for the rule that rotates the first states into the second, among all frequencies found
in the model and all pair layouts. If a layer has no such rule, packets of this model cannot be moved, and the model is
rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kvpacket_rag.errors import UnsupportedModelError
from kvpacket_rag.packets.packet import LayerGroup, StateLayout
from kvpacket_rag.packets.rope import Rotation, rotate_into

__all__ = ["position_limit", "prove_layout", "refuse_by_config"]

PROBE_TOKENS = 12
PROBE_DISTANCE = 512

# Largest relative error (Frobenius norm) at which two states count as equal. With 16 bits, the two runs differ by the
# rounding errors of all earlier layers. A wrong rule has an error of about 1.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-4, torch.bfloat16: 0.1, torch.float16: 0.05}

# Layer types whose state is a running summary of all earlier tokens. Such a state cannot be cut out and moved.
RECURRENT = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent", "rwkv"}
# Layer types that cache an index or compressed entries besides keys and values.
INDEXED = {"indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse"}


def refuse_by_config(config: Any) -> None:
    """Raise `UnsupportedModelError` if the configuration alone rules out the model. No weights have to be loaded."""
    name = getattr(config, "model_type", "this model")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder model, but packets need a decoder-only model. Choose a causal language model.",
            reason="encoder_decoder",
        )
    text = config.get_text_config()
    types = {*(getattr(text, "layer_types", None) or ()), *(getattr(text, "layers_block_type", None) or ())}
    if found := sorted(types & RECURRENT):
        raise UnsupportedModelError(
            f"{name} has layers of type {', '.join(found)}: their state sums up all tokens before it and cannot be moved "
            "or placed beside others. Choose a model with attention in every layer.",
            reason="recurrent_layers",
        )
    if found := sorted(types & INDEXED):
        raise UnsupportedModelError(
            f"{name} has layers of type {', '.join(found)}, which cache an index besides keys and values. Packets cannot hold this index.",
            reason="indexed_cache",
        )


def position_limit(config: Any) -> int:
    """Return the number of positions within which rotation frequencies stay the same as when packets were encoded.

    Length-dependent frequencies (dynamic NTK, longrope) change beyond the original window, and chunked attention
    hides tokens across chunk borders. Contexts therefore stay within these limits.
    """
    text = config.get_text_config()
    limits = [int(getattr(text, "max_position_embeddings", None) or 1 << 20)]
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for rope in nested:
        if rope.get("rope_type") in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limits.append(int(original or limits[0]))
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        limits.append(int(text.attention_chunk_size))
    return min(limits)


def _frequencies(model: torch.nn.Module) -> list[Tensor]:
    """Collect the distinct `inv_freq` tensors of a model, whether buffers or plain attributes, in float64."""

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for _, module in model.named_modules():
            yield from module.named_buffers(recurse=False)
            yield from ((name, value) for name, value in vars(module).items() if isinstance(value, Tensor))

    found: list[Tensor] = []
    for name, value in tensors():
        if name.endswith("inv_freq") and "original" not in name and value.ndim == 1:
            frequencies = value.detach().cpu().double()
            if not any(torch.equal(frequencies, other) for other in found):
                found.append(frequencies)
    return found


def _candidates(which: Any, width: int, frequencies: list[Tensor]) -> Iterator[Rotation]:
    for inv_freq in frequencies:
        rotated = 2 * inv_freq.numel()
        if rotated <= width:
            for offset in sorted({0, width - rotated}):
                yield Rotation(which, "half", offset, inv_freq)
                yield Rotation(which, "interleaved", offset, inv_freq)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def _best_rotation(
    which: str, near: Tensor, far: Tensor, shift: int, frequencies: list[Tensor]
) -> tuple[float, Rotation | None]:
    best: tuple[float, Rotation | None] = (_distance(near, far), None)
    for rotation in _candidates(which, near.shape[-1], frequencies):
        moved = torch.empty_like(near)
        rotate_into(moved, near, rotation, shift)
        error = _distance(moved, far)
        if error < best[0]:
            best = (error, rotation)
    return best


def _layer_rule(
    layer: int, near: Any, far: Any, shift: int, frequencies: list[Tensor], tolerance: float
) -> Rotation | None:
    """Find the rotation rule of layer `layer`. `near` and `far` hold its states at both positions, in float64."""
    key_error, key_rule = _best_rotation("keys", near.keys, far.keys, shift, frequencies)
    value_error, value_rule = _best_rotation("values", near.values, far.values, shift, frequencies)
    if max(key_error, value_error) <= tolerance and not (key_rule and value_rule):
        return key_rule or value_rule
    if _distance(near.values, far.values) > tolerance and value_error > tolerance:
        raise UnsupportedModelError(
            f"Layer {layer} caches other values at another position (relative error {value_error:.2g}, allowed {tolerance:.0e}): "
            "positions are mixed into the hidden states (absolute position embeddings), so a packet cannot be moved. "
            "Choose a model with rotary positions.",
            reason="absolute_positions",
        )
    raise UnsupportedModelError(
        f"No rotation was found that moves the keys of layer {layer} to another position: best relative error "
        f"{max(key_error, value_error):.2g}, allowed {tolerance:.0e} ({len(frequencies)} sets of frequencies tried). "
        "This model's position rule is not supported.",
        reason="rope_self_test_failed",
    )


class _LayerStates:
    def __init__(self, layer: Any) -> None:
        self.keys, self.values = (t[0].detach().cpu().double() for t in (layer.keys, layer.values))


def prove_layout(
    model: torch.nn.Module, run: Callable[[Tensor, Tensor], Any], limit: int, vocabulary: int
) -> StateLayout:
    """Derive the layout of a model's states, and prove on the model that they can be moved. This runs once, at load.

    run: a function from token ids [1, T] and positions [1, T] to the model's own dynamic cache.
    limit: number of positions that the model can use.
    Raises `UnsupportedModelError` with the reason if the states of a layer cannot be moved.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = min(PROBE_TOKENS, limit // 3)
    shift = min(PROBE_DISTANCE, limit - tokens)
    ids = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    positions = torch.arange(tokens)[None]
    caches = [run(ids, positions), run(ids, positions + shift)]
    if any(not hasattr(cache, "layers") or not cache.layers for cache in caches):
        raise UnsupportedModelError(
            "The model returned no cache of keys and values by layer. Choose a decoder whose attention caches keys and values.",
            reason="cache_layout",
        )
    frequencies = _frequencies(model)
    tolerance = TOLERANCE[next(model.parameters()).dtype]
    members: dict[Any, list[int]] = {}
    rules: dict[Any, Rotation | None] = {}
    for index, (near, far) in enumerate(zip(caches[0].layers, caches[1].layers, strict=True)):
        keys, values = getattr(near, "keys", None), getattr(near, "values", None)
        if keys is None or values is None or not keys.numel():
            continue  # this layer shares the states of another layer
        if keys.ndim != 4 or keys.shape[2] != tokens:
            raise UnsupportedModelError(
                f"Layer {index} caches keys of shape {tuple(keys.shape)}; expected [1, heads, {tokens}, dim].",
                reason="cache_layout",
            )
        rule = _layer_rule(index, _LayerStates(near), _LayerStates(far), shift, frequencies, tolerance)
        same = next((k for k, v in rules.items() if k[:4] == _shape(keys, values) and _equal(v, rule)), None)
        name = same if same is not None else (*_shape(keys, values), index)
        rules[name] = rule
        members.setdefault(name, []).append(index)
    groups = tuple(LayerGroup(tuple(layers), name[:2], name[2:4], rules[name]) for name, layers in members.items())
    if not groups:
        raise UnsupportedModelError("No layer of the model caches keys and values.", reason="cache_layout")
    return StateLayout(groups, len(caches[0].layers))


def _shape(keys: Tensor, values: Tensor) -> tuple[int, int, int, int]:
    return keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]


def _equal(a: Rotation | None, b: Rotation | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.tensor, a.layout, a.offset) == (b.tensor, b.layout, b.offset) and torch.equal(a.inv_freq, b.inv_freq)
