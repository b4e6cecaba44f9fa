"""Recompute the states at chosen slots of a context, and measure attention to a context.

Text between packets and methods that repair concatenated caches need the same operation. The model's own forward pass
runs on chosen tokens, and their keys and values are written to their slots, while attention covers the whole context.
No architecture is known by name. Sliding-window and chunked layers get masks by position.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kvpacket_rag.engine.protocol import ContextCache
from kvpacket_rag.engine.transformers.cache import slot_cache
from kvpacket_rag.engine.transformers.forward import Forward
from kvpacket_rag.errors import InputError

__all__ = ["attention", "recompute"]


class _Stop(Exception):  # noqa: N818 - not an error
    """Raised when the last requested layer has its states, because the rest of the forward pass is not needed."""


class _Overwritten(CacheLayerMixin):  # type: ignore[misc]
    """One layer's filled slots, some of which are replaced."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, *, last: bool) -> None:
        super().__init__()
        self.keys, self.values, self._slots, self._last = keys, values, slots, last
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing, because the slots exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Replace states [B, H, n, D] at the chosen slots and return all filled slots."""
        self.keys.index_copy_(2, self._slots, key_states)
        self.values.index_copy_(2, self._slots, value_states)
        if self._last:
            raise _Stop
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of filled slots, and the position of the first."""
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        """Return the number of filled slots."""
        return int(self.keys.shape[-2])

    def get_max_length(self) -> int:
        """Return -1, which means "no fixed length"."""
        return -1


def _masks(config: Any, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Any:
    """Return additive masks [1, 1, n, T] by position, one for each kind of layer (a mapping if there are several)."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    kinds = list(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])

    def mask(kind: str) -> Tensor:
        seen = queries[:, None] >= keys
        if kind == "sliding_attention" and window:
            seen &= (queries - window)[:, None] < keys
        if kind == "chunked_attention" and chunk:
            seen &= (queries // chunk)[:, None] == keys // chunk
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[
            None, None
        ]

    masks = {kind: mask(kind) for kind in kinds}
    return masks if len(masks) > 1 else masks[kinds[0]]


def _with_soft(forward: Forward, ids: Tensor, soft: Tensor) -> Tensor:
    """Return the input embeddings [1, n, hidden] of ids [n], with `soft` where ids are below 0."""
    embeddings = forward.embed(ids.clamp_min(0)).clone()
    embeddings[(ids < 0).to(forward.device)] = soft.to(embeddings)
    return embeddings[None]


def _run(forward: Forward, cache: Any, ids: Tensor, positions: Tensor, keep: int = 0, **inputs: Any) -> Any:
    if "inputs_embeds" not in inputs:
        inputs["input_ids"] = ids.to(forward.device)[None]
    return forward(cache, positions[None], keep=keep, **inputs)


def recompute(
    forward: Forward,
    cache: ContextCache,
    slots: Tensor,
    ids: Tensor,
    *,
    soft: Tensor | None = None,
    positions: Tensor | None = None,
    layers: int | None = None,
    keep: int = 0,
) -> Tensor:
    """Run tokens `ids` [n] at the filled or reserved slots `slots` [n] of a one-row context, and write their states.

    Each token attends to all slots at its own and earlier positions, whether they are recomputed or not.
    soft: embeddings [m, hidden] of the m ids below 0, in their order. positions: position [T] of every filled slot. The
    default is the number of the slot. layers: number of first layers that run and whose states are written, or None for
    all.
    Returns float32 logits [keep, vocabulary] of the last `keep` tokens. Raises `InputError` for slots that are not
    filled.
    """
    cache = slot_cache(cache)
    filled = cache.length
    nothing = torch.empty(0, forward.hf.config.get_text_config().vocab_size)
    if not len(slots):
        return nothing
    if int(slots.max()) >= filled or int(slots.min()) < 0:
        raise InputError(
            f"Only filled slots can be recomputed: the context has {filled} filled slots, but slot {int(slots.max())} was requested."
        )
    slots = slots.to(forward.device)
    keys = torch.arange(filled, device=forward.device) if positions is None else positions.to(forward.device)
    rewritten: list[Any] = list(cache.layers)
    owning = [layer for group in cache.layout.groups for layer in group.layers]
    last = sorted(owning)[layers - 1] if layers is not None and layers < len(owning) else None
    for number in owning:
        layer = cache.layers[number]
        rewritten[number] = _Overwritten(
            layer.keys[:, :, :filled], layer.values[:, :, :filled], slots, last=number == last
        )
    inputs = {} if soft is None or not len(soft) else {"inputs_embeds": _with_soft(forward, ids, soft)}
    masks = _masks(forward.hf.config, keys[slots], keys, forward.dtype)
    output = None
    with contextlib.suppress(_Stop):
        output = _run(forward, Cache(layers=rewritten), ids, keys[slots], keep, attention_mask=masks, **inputs)
    return output.logits[0, -keep:].float() if keep and output is not None else nothing


def attention(forward: Forward, cache: ContextCache, ids: Tensor) -> Tensor:
    """Run tokens `ids` [n] after a one-row context, and return their attention weights. The context does not change.

    Returns float32 attention weights [n, T], averaged over layers and heads, for the T slots that were filled before.
    """
    filled = cache.length
    positions = torch.arange(filled, filled + len(ids))
    with forward.attention("eager"):
        output = _run(forward, cache.filled(filled), ids, positions, output_attentions=True)
    weights = [layer[0, :, :, :filled].float().mean(0) for layer in output.attentions if layer is not None]
    return torch.stack(weights).mean(0)
