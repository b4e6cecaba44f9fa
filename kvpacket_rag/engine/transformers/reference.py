"""The same model, run by transformers without this package. Measurements compare with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from kvpacket_rag.engine.transformers.grouped_attention import usual
from kvpacket_rag.engine.transformers.packet_model import PacketModel

__all__ = ["Reference"]


class Reference:
    """The weights of a `PacketModel` with transformers' own attention, caches and `generate`."""

    def __init__(self, model: PacketModel) -> None:
        self._hf, self._forward, self.device = model._hf, model._forward, model.device
        self._attention = usual(self._hf.config._attn_implementation)

    def prefill(self, rows: Sequence[Sequence[int]], *, whole: bool = False) -> DynamicCache:
        """Prefill rows of token ids of the same length, and return their KV cache. Only the last token gets logits.

        whole: whether sliding-window layers keep all states as well.
        """
        cache = DynamicCache() if whole else DynamicCache(config=self._hf.config)
        self.run(rows, cache)
        return cache

    def first(self, ids: Sequence[int]) -> int:
        """Run all ids, and return the first generated token."""
        return int(self.run([ids], DynamicCache(config=self._hf.config)).argmax())

    def run(self, rows: Sequence[Sequence[int]], cache: DynamicCache) -> Tensor:
        """Run rows of token ids after the states in a cache. Returns their last tokens' logits [B, vocabulary]."""
        ids = torch.tensor(rows, device=self.device)
        options = {self._forward.cache_argument: cache, **self._forward.keeping(1, ids.shape[1])}
        with self._forward.attention(self._attention), torch.inference_mode():
            output = self._hf(input_ids=ids, use_cache=True, **options)
        logits: Tensor = output.logits[:, -1]
        return logits

    def generate(self, ids: Sequence[int], cache: DynamicCache, tokens: int) -> Tensor:
        """Generate exactly `tokens` tokens greedily. `cache` holds the states of all ids except the last, and grows."""
        whole = torch.tensor([list(ids)], device=self.device)
        options = {self._forward.cache_argument: cache}
        with self._forward.attention(self._attention):
            generated: Tensor = self._hf.generate(
                whole, attention_mask=torch.ones_like(whole), do_sample=False,
                min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0, **options,
            )  # fmt: skip
        return generated[0, len(ids) :]

    def joined(self, parts: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> DynamicCache:
        """Return a cache that joins the states of several texts. parts: keys and values of each text, by layer."""
        cache = DynamicCache()
        for layers in zip(*parts, strict=True):
            layer = DynamicLayer()
            layer.keys, layer.values = (torch.cat([part[kind] for part in layers], dim=-2) for kind in (0, 1))
            layer.is_initialized = True
            cache.layers.append(layer)
        return cache

    @staticmethod
    def copy(cache: DynamicCache) -> DynamicCache:
        """Return an independent cache with the same states."""
        return copy.deepcopy(cache)
