"""Models that cannot be loaded are named with the reason; those that can are remembered by what loads them again."""

from __future__ import annotations

import pytest
import torch

from kvpacket_rag.engine.transformers.loading import native_dtype
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import ModelLoadError, UnsupportedModelError
from tests.conftest import character_tokenizer, tiny_config, tiny_hf


@pytest.fixture
def folder(tmp_path):
    tiny_hf(tiny_config("llama")).save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_is_loaded_and_remembered_by_its_whole_path(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    model = PacketModel.from_pretrained("model", dtype="float32")
    assert (model.name, model.source, model.dtype) == ("model", str(folder), torch.float32)


@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", b"\xff" * 100],
    ids=["empty", "a pointer", "garbage"],
)
def test_damaged_weights_are_named(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match="No model could be loaded"):
        PacketModel.from_pretrained(folder)


def test_missing_weights_are_not_made_up(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks 1 weights \(model\.layers\.1\.mlp"):
        PacketModel.from_pretrained(folder)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_incomplete_folder_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(ModelLoadError, match="model"):
        PacketModel.from_pretrained(folder)


@pytest.mark.parametrize("content", [b"", b"GGUFnot", b"\x00" * 500])
def test_a_damaged_gguf_file_is_named(tmp_path, content):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"bad\.gguf cannot be read as a GGUF model"):
        PacketModel.from_pretrained(tmp_path / "bad.gguf")


@pytest.mark.parametrize(("option", "value"), [("device", "gpu"), ("dtype", "int8"), ("dtype", "half-precision")])
def test_a_device_or_number_format_that_is_none_is_named(folder, option, value):
    with pytest.raises(ModelLoadError, match=value):
        PacketModel.from_pretrained(folder, **{option: value})


def test_a_refused_architecture_keeps_its_reason(tmp_path):
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        PacketModel.from_pretrained(tmp_path)


def test_the_number_format_is_one_the_processor_computes():
    assert native_dtype(torch.device("cpu")) in (torch.bfloat16, torch.float32)
