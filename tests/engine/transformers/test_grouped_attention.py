"""Attention over shared heads gives what transformers' own gives, whatever the mask, and models keep what they need."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvpacket_rag.engine.transformers.grouped_attention import NAME, grouped_attention
from tests.conftest import tiny_config, tiny_hf


class Module:
    """What an attention layer shows of itself."""

    num_key_value_groups = 3
    is_causal = True


def states(count: int, filled: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 6, count, 8), torch.randn(rows, 2, filled, 8), torch.randn(rows, 2, filled, 8)


def causal(count: int, filled: int) -> torch.Tensor:
    return torch.ones(count, filled, dtype=torch.bool).tril(filled - count)[None, None]


def padded(mask: torch.Tensor) -> torch.Tensor:
    """The same for two rows, of which the second starts two slots later."""
    mask = mask.repeat(2, 1, 1, 1)
    mask[1, :, :, :2] = False
    return mask


@pytest.mark.parametrize(("count", "filled"), [(1, 9), (4, 9), (9, 9), (1, 1)])
@pytest.mark.parametrize(
    "kind", ["none", "boolean", "added", "alike", "alike added", "padded", "by head", "one for all"]
)
def test_it_gives_what_the_usual_function_gives(count, filled, kind):
    if kind == "padded" and filled == 1:
        pytest.skip("nothing would be left to see")
    query, key, value = states(count, filled)
    mask = {
        "none": None,
        "boolean": causal(count, filled),
        "added": torch.zeros(1, 1, count, filled).masked_fill(~causal(count, filled), -torch.inf),
        "alike": causal(count, filled).expand(2, -1, -1, -1),
        "alike added": torch.zeros(1, 1, count, filled)
        .masked_fill(~causal(count, filled), -torch.inf)
        .expand(2, 1, -1, -1),
        "padded": padded(causal(count, filled)),
        "one for all": torch.ones(1, 1, 1, filled, dtype=torch.bool),
        "by head": causal(count, filled).expand(2, 6, -1, -1),
    }[kind]
    if kind == "none" and 1 < count < filled:
        pytest.skip("transformers passes a mask here")
    expected, _ = sdpa_attention_forward(Module(), query, key, value, mask, scaling=0.3)
    found, weights = grouped_attention(Module(), query, key, value, mask, scaling=0.3)
    assert weights is None
    assert found.shape == expected.shape == (2, count, 6, 8)
    assert torch.allclose(found, expected, atol=1e-6)


def test_gradients_pass():
    query, key, value = (part.requires_grad_() for part in states(1, 5))
    grouped_attention(Module(), query, key, value, None)[0].sum().backward()
    assert value.grad is not None
    assert value.grad.abs().sum() > 0


def test_a_model_that_asks_for_another_attention_keeps_it(llama):
    from kvpacket_rag.engine.transformers.grouped_attention import use_grouped_attention

    assert llama._hf.config._attn_implementation == NAME
    other = tiny_hf(tiny_config("llama"))
    other.set_attn_implementation("eager")
    use_grouped_attention(other)
    assert other.config._attn_implementation == "eager"
