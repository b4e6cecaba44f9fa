"""What a model's states are and how they turn is found on the model; what cannot be moved is refused with the reason."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvpacket_rag.engine.transformers.layout import position_limit, refuse_by_config
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import UnsupportedModelError
from tests.conftest import BASE, character_tokenizer, tiny_config, tiny_hf, tiny_model

REFUSED = {
    "gpt2": ("absolute_positions", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 2048}),
    "opt": ("absolute_positions", {"ffn_dim": 64, "word_embed_proj_dim": 64, "max_position_embeddings": 2048}),
    "mamba": ("recurrent_layers", {"num_hidden_layers": 2}),
    "jamba": ("recurrent_layers", {"num_experts": 2}),
    "qwen3_next": ("recurrent_layers", {}),
    "t5": ("encoder_decoder", {}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_whose_states_cannot_be_moved_are_refused_with_the_reason(kind):
    reason, extra = REFUSED[kind]
    config = AutoConfig.for_model(kind, **{**BASE, **extra})

    def load():
        refuse_by_config(config)
        PacketModel(AutoModelForCausalLM.from_config(config).float(), character_tokenizer())

    with pytest.raises(UnsupportedModelError) as raised:
        load()
    assert raised.value.reason == reason
    assert str(raised.value).endswith(".")


def test_layers_with_frequencies_of_their_own_form_groups():
    local, distant = tiny_model("gemma3").layout.groups
    assert local.layers == (0, 1)
    assert distant.layers == (2,)
    assert not torch.equal(local.rotation.inv_freq, distant.rotation.inv_freq)


def test_layers_without_positions_are_not_rotated():
    rotations = {group.layers: group.rotation for group in tiny_model("smollm3-nope").layout.groups}
    assert rotations[(3,)] is None
    assert rotations[(0, 1, 2)] is not None


def test_latent_attention_turns_the_values():
    (group,) = tiny_model("deepseek-v3-latent").layout.groups
    assert group.rotation.tensor == "values"
    assert group.key_shape == (1, 16)
    assert group.value_shape == (1, 8)


@pytest.mark.parametrize(
    ("name", "layout", "width"),
    [
        ("llama", "half", 16),
        ("cohere", "interleaved", 16),
        ("glm-interleaved", "interleaved", 8),
        ("gpt-neox-partial", "half", 4),
    ],
)
def test_pair_layout_and_rotated_width_are_found(name, layout, width):
    (group,) = tiny_model(name).layout.groups
    assert (group.rotation.layout, group.rotation.width) == (layout, width)


def test_scaling_factors_are_not_part_of_the_rotation():
    scaled = tiny_model("yarn")
    assert scaled._hf.model.rotary_emb.attention_scaling > 1.1
    assert scaled.layout.groups[0].rotation is not None


def test_contexts_stay_below_the_length_at_which_frequencies_change():
    assert position_limit(tiny_config("phi3-longrope")) == 1024
    assert position_limit(tiny_config("llama3-rope")) == 8192


def test_a_rule_that_does_not_hold_in_every_layer_is_refused():
    hf = tiny_hf(tiny_config("llama"))

    class Shifted(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden_states, **kwargs):
            positions = kwargs["position_ids"]
            return self.inner(hidden_states + positions[..., None] / 100, **kwargs)

    hf.model.layers[1] = Shifted(hf.model.layers[1])
    with pytest.raises(UnsupportedModelError, match="Layer 1 caches other values") as raised:
        PacketModel(hf, character_tokenizer())
    assert raised.value.reason == "absolute_positions"


def test_the_model_is_left_as_it_was():
    hf = tiny_hf(tiny_config("llama"))
    before = {name: weight.clone() for name, weight in hf.state_dict().items()}
    model = PacketModel(hf, character_tokenizer())
    model.encode([[7, 8, 9]], anchor=[5, 6])
    assert all(torch.equal(before[name], weight) for name, weight in hf.state_dict().items())
