"""Attention for processors where several query heads share one key/value head (GQA, arXiv 2305.13245).

Registered with transformers under a name of its own. On a CPU, torch's kernel reads the shared keys and values once
for each query head, or transformers copies them; when one token is decoded the query heads of a group can stand in
the rows of one head instead, and everything cached is read once. Elsewhere the usual function is called.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["use_grouped_attention"]

NAME = "kvpacket_sdpa"
USUAL = "sdpa"


def use_grouped_attention(hf_model: Any) -> None:
    """Let a model that computes attention the usual way, on a CPU, use `grouped_attention`; others stay as they are."""
    if hf_model.config._attn_implementation == USUAL and hf_model.device.type == "cpu":
        AttentionInterface.register(NAME, grouped_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        hf_model.set_attn_implementation(NAME)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend from query [B, H, Q, D] to key and value [B, H / G, T, D]; gives [B, Q, H, D].

    attention_mask: [B, 1, Q, T], added or boolean, or None. kwargs: what transformers passes to every function of this kind.
    """
    batch, heads, count, width = query.shape
    shared = key.shape[1]
    special = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    plain = count == 1 if attention_mask is None else attention_mask.shape[1] == 1
    if shared == heads or special or not plain:
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return result
    options = {"attn_mask": attention_mask, "dropout_p": kwargs.get("dropout", 0.0), "scale": kwargs.get("scaling")}
    if count == 1:
        rows = query.reshape(batch, shared, heads // shared, width)
        out = scaled_dot_product_attention(rows, key, value, **options).reshape(batch, heads, 1, -1)
    else:
        out = scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    return out.transpose(1, 2).contiguous(), None
