"""Attention on CPUs for models in which several query heads share one key/value head (GQA, arXiv 2305.13245).

It is registered with transformers under a name of its own. On a CPU, torch's kernel reads the shared keys and values
once for each query head, or transformers copies them. Here, the query heads of a group become rows of one head, so that
the cached states are read once for the whole group. In all other cases the usual function is called.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["use_grouped_attention", "usual"]

NAME = "kvpacket_sdpa"
USUAL = "sdpa"


def use_grouped_attention(hf_model: Any) -> None:
    """Make a model use `grouped_attention` if it is on a CPU and uses the usual attention. Others do not change."""
    if hf_model.config._attn_implementation == USUAL and hf_model.device.type == "cpu":
        AttentionInterface.register(NAME, grouped_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        hf_model.set_attn_implementation(NAME)


def usual(name: str) -> str:
    """Return the name of the transformers attention that `name` replaces, or `name` itself if it replaces none."""
    return USUAL if name == NAME else name


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend from query [B, H, Q, D] to key and value [B, H / G, T, D]. Returns [B, Q, H, D].

    attention_mask: [B, 1, Q, T], additive or boolean, or None. kwargs: the arguments that transformers passes to every
    attention function.
    """
    batch, heads, count, width = query.shape
    shared = key.shape[1]
    special = kwargs.get("position_bias") is not None or kwargs.get("softcap") is not None
    plain = count == 1 if attention_mask is None else attention_mask.shape[1:3] == (1, count)
    if shared == heads or special or not plain:
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return result
    group = heads // shared
    if attention_mask is not None:
        # A mask that is the same for all rows of the batch is a view of one row. Only that row is repeated.
        alike = attention_mask[:1] if attention_mask.stride(0) == 0 else attention_mask
        attention_mask = alike.repeat(1, 1, group, 1)
    out = scaled_dot_product_attention(
        query.reshape(batch, shared, group * count, width), key, value,
        attn_mask=attention_mask, dropout_p=kwargs.get("dropout", 0.0), scale=kwargs.get("scaling"),
    )  # fmt: skip
    return out.reshape(batch, heads, count, -1).transpose(1, 2).contiguous(), None
