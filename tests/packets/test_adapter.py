"""Adapters are loaded only where they belong."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import kvpacket_rag
from kvpacket_rag.errors import AdapterError
from kvpacket_rag.packets.adapter import PARTS, Adapter, AdapterCard, shipped_adapter
from tests.conftest import tiny_model


def adapter(hidden=64, **card):
    sizes = {"header": 2, "trailer": 0, "bridge": 3, "anchor": 4}
    return Adapter.of(
        {name: torch.randn(n, hidden, generator=torch.Generator().manual_seed(n)) for name, n in sizes.items()},
        AdapterCard(**card),
    )


def test_an_adapter_read_back_is_the_adapter_written(tmp_path):
    one = adapter(model="m", architecture="llama", chunk_lengths=(64, 256), fidelity={"qa": 0.1})
    one.save(tmp_path / "a.safetensors")
    two = Adapter.load(tmp_path / "a.safetensors")
    assert all(torch.equal(getattr(one, p), getattr(two, p)) for p in ("header", "trailer", "bridge", "anchor"))
    assert two.card == one.card
    assert two.packet_hash == one.packet_hash


def test_only_header_and_trailer_are_part_of_a_packets_identity():
    one = adapter()
    assert replace(one, bridge=one.bridge + 1).packet_hash == one.packet_hash
    assert replace(one, header=one.header + 1).packet_hash != one.packet_hash
    assert Adapter.of({"bridge": one.bridge}).packet_hash == "none"


@pytest.mark.parametrize(
    "card",
    [{"architecture": "qwen2"}, {"tokenizer": "other"}, {"model": "other-model"}],
    ids=["architecture", "tokenizer", "model"],
)
def test_an_adapter_of_another_model_is_refused_and_both_are_named(card):
    (expected,) = card.values()
    with pytest.raises(AdapterError, match=f"'{expected}'.*tiny-llama"):
        tiny_model(adapter=adapter(**card))


def test_a_models_name_is_the_same_in_capitals():
    one = adapter(model="Tiny-Model-1B")
    one.check(architecture="llama", hidden_size=64, tokenizer="t", model="tiny-model-1b")
    with pytest.raises(AdapterError, match="Tiny-Model-1B"):
        one.check(architecture="llama", hidden_size=64, tokenizer="t", model="tiny-model-2b")


def test_an_adapter_of_another_width_is_refused():
    with pytest.raises(AdapterError, match="hidden size 32"):
        tiny_model(adapter=adapter(hidden=32))


def test_other_weights_of_the_same_name_give_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        tiny_model(adapter=adapter(weights="0" * 16))
    assert "other weights" in caplog.text


def test_files_that_are_no_adapter_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(AdapterError, match="cannot be read"):
        Adapter.load(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(AdapterError, match="cannot be read"):
        Adapter.load(path)
    save_file({"header": torch.zeros(1, 4)}, path)
    with pytest.raises(AdapterError, match="not an adapter"):
        Adapter.load(path)


def test_parts_of_different_width_are_refused():
    with pytest.raises(AdapterError, match="one hidden size"):
        Adapter.of({"header": torch.zeros(1, 4), "trailer": torch.zeros(1, 5)})


SHIPPED = sorted((Path(kvpacket_rag.__file__).parent / "packets" / "adapters").glob("*.safetensors"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_adapters_are_small_and_say_what_they_are(path):
    loaded = Adapter.load(path)
    card = loaded.card
    name, kind, _ = path.name.rsplit(".", 2)
    assert path.stat().st_size < 500_000
    numbers = sum(getattr(loaded, part).numel() for part in PARTS)
    assert path.stat().st_size < 2 * numbers + 4096, "16 bit a number, and the card"
    assert name == card.model
    assert kind in ("packet", "paper")
    assert card.architecture
    assert card.tokenizer
    assert card.weights
    assert len(card.data.split(";")) >= 4, "trained on a mixture of domains"
    assert 0 < card.chunk_lengths[0] < card.chunk_lengths[1]
    assert card.training["seed"] is not None
    assert set(card.fidelity) == set(card.without)
    if kind == "packet":
        assert all(card.fidelity[domain] < card.without[domain] for domain in card.fidelity), "the gate"


def test_a_shipped_adapter_is_found_by_the_model_it_was_trained_for(llama):
    for path in SHIPPED:
        card, width = Adapter.load(path).card, Adapter.load(path).hidden_size
        identity = {
            "architecture": card.architecture, "hidden_size": width, "tokenizer": card.tokenizer, "model": card.model
        }  # fmt: skip
        _, kind, _ = path.name.rsplit(".", 2)
        found = shipped_adapter(identity, kind)
        assert found is not None
        assert found.digest == Adapter.load(path).digest
        assert shipped_adapter({**identity, "tokenizer": "another"}, kind) is None
    assert shipped_adapter(llama.adapter_identity) is None
