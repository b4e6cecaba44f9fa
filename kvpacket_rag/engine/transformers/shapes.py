"""Models of known shapes with random weights, for speed measurements. Speed does not depend on weight values."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvpacket_rag.engine.catalogue import fetch
from kvpacket_rag.engine.transformers.loading import chosen_device, convert_gguf, native_dtype
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError

__all__ = ["SHAPES", "random_model"]

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    },
    "tiny": {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Published configurations by name."""


def random_model(shape: str, *, device: str | None = None) -> PacketModel:
    """Build a model of a shape with random weights and the tokenizer of the default model.

    Raises `InputError` for an unknown shape, and `ModelLoadError` for a device that is not available.
    """
    if shape not in SHAPES:
        raise InputError(f"--shape must be one of {', '.join(SHAPES)}; got {shape!r}.")
    target = chosen_device(device)
    options = dict(SHAPES[shape])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    with torch.device(target):
        model = AutoModelForCausalLM.from_config(config, dtype=native_dtype(target))
    tokenizer = AutoTokenizer.from_pretrained(str(fetch("smollm2-135m-instruct", convert_gguf)))
    return PacketModel(model, tokenizer, name=f"{shape} (random weights)")
