"""The benchmarks measure what they say and write what they measured. No time is asserted."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from kvpacket_rag.bench.methods.registry import make_methods
from kvpacket_rag.bench.report import Column, Report, Table, markdown, write_report
from kvpacket_rag.bench.speed import ttft
from kvpacket_rag.bench.speed.build import measure_build
from kvpacket_rag.bench.speed.decode import measure_decode
from kvpacket_rag.bench.speed.load import measure_load
from kvpacket_rag.bench.speed.material import make_material
from kvpacket_rag.bench.speed.peers import measure_peers
from kvpacket_rag.bench.speed.store import measure_store, searcher
from kvpacket_rag.bench.speed.timing import Spread, Way, interleaved, ratio
from kvpacket_rag.engine.transformers.reference import Reference
from kvpacket_rag.engine.transformers.shapes import random_model
from kvpacket_rag.errors import InputError, MissingDependencyError, ModelLoadError
from tests.conftest import HashEmbedder, tiny_model


@pytest.fixture(scope="module")
def report(llama):
    return ttft.measure_ttft(
        llama,
        [256, 512, 100_000],
        repeats=2,
        storage="int8",
        others=make_methods(["epic-10"]),
        search=searcher(HashEmbedder()),
    )


def test_ways_take_turns_and_preparations_are_not_counted():
    order = []
    ways = {name: Way(lambda name=name: order.append(name), before=lambda: order.append("before")) for name in "abc"}
    seconds = interleaved(ways, 3)
    runs = [name for name in order if name != "before"]
    rounds = [runs[at : at + 3] for at in range(0, len(runs), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert order[::2] == ["before"] * 12
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_ratios_are_made_within_rounds():
    assert ratio({"a": [1.0, 4.0], "b": [2.0, 2.0]}, "a", "b") == Spread(1.25, 0.5, 2.0)


def test_every_length_has_a_row_and_lengths_beyond_the_window_are_named(report):
    first, steps = report.tables
    assert [row["context"] for row in first.rows] == [row["context"] for row in steps.rows] == [256, 512]
    assert "These lengths exceed the model's window and were left out: 100,000." in report.notes
    for row in first.rows:
        assert {"full", "ram", "disk", "limit", "epic-10", "ram_over_limit"} <= set(row)
        assert row["ram"].low / row["limit"].high <= row["ram_over_limit"].median <= row["ram"].high / row["limit"].low
    assert {"embed", "search", "load", "decode", "assemble", "question", "choose"} < set(steps.rows[0])


def test_a_report_is_written_as_json_markdown_and_a_picture(report, tmp_path):
    shown = write_report(report, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["tables"][0]["rows"][1]["context"] == 512
    assert set(written["tables"][0]["rows"][0]["full"]) == {"median", "low", "high"}
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8").strip() == shown == markdown(report)
    assert "storage int8" in shown
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_cells_show_the_median_with_its_spread():
    columns = Column("a", "A", "fine ms"), Column("b", "B", "percent"), Column("c", "C", "count")
    row = {"a": Spread(0.0123, 0.01, 0.02), "b": 0.5, "c": None}
    shown = markdown(Report("T", {"threads": 2}, (Table("", columns, (row,)),)))
    assert "| 12.30 ms (10.00–20.00) | 50 % | – |" in shown
    assert shown.startswith("T: threads 2.")


@pytest.mark.parametrize(("lengths", "repeats"), [([], 1), ([10], 1), ([9000], 1), ([256], 0)])
def test_lengths_and_repeats_that_cannot_be_measured_are_refused(llama, lengths, repeats):
    with pytest.raises(InputError):
        ttft.measure_ttft(llama, lengths, repeats=repeats)


def test_all_ways_choose_a_token_from_the_same_context(llama):
    with make_material(llama, 2) as material:
        ways = ttft._ways(material, 2, ())
        chosen = {}
        for name in (*ways, "limit"):
            ways[name].before()
            chosen.setdefault(ways[name].run(), []).append(name)
    assert len(chosen) == 1


def test_decoding_goes_on_alike_in_this_package_and_in_transformers(llama):
    ids = list(range(7, 60))
    reference = Reference(llama)
    theirs = reference.generate([*ids, 9], reference.prefill([ids]), 12).tolist()
    cache = llama.allocate(80)
    llama.forward(cache, ids)
    ours, token = [], 9
    for _ in range(12):
        token = int(llama.forward(cache, [token])[0].argmax())
        ours.append(token)
    assert ours == theirs
    row = measure_decode(llama, [256], tokens=3, repeats=1).tables[0].rows[0]
    assert row["ratio"].median == pytest.approx(row["ours"].median / row["generate"].median)


def test_the_reference_has_transformers_own_attention_and_leaves_the_model_as_it_was(llama):
    before = llama._hf.config._attn_implementation
    cache = Reference(llama).prefill([[7, 8, 9], [9, 8, 7]])
    assert llama._hf.config._attn_implementation == before
    ours = llama.allocate(3, rows=2)
    llama.forward(ours, torch.tensor([[7, 8, 9], [9, 8, 7]]))
    for number, layer in enumerate(cache.layers):
        assert torch.allclose(layer.keys, ours.layer_states(number)[0], atol=1e-5)


def test_a_model_with_another_attention_is_compared_under_its_own(tmp_path):
    gemma = tiny_model("gemma2")
    assert gemma._hf.config._attn_implementation == "eager"
    row = measure_decode(gemma, [256], tokens=2, repeats=1).tables[0].rows[0]
    assert row["generate"].median > 0
    assert gemma._hf.config._attn_implementation == "eager"


def test_saved_states_are_joined_whole_in_layers_with_a_window_too():
    reference = Reference(tiny_model("mistral-sliding"))
    parts = [reference.prefill([list(range(7, 47))], whole=True) for _ in range(3)]
    joined = reference.joined([[(layer.keys, layer.values) for layer in part.layers] for part in parts])
    assert joined.get_seq_length() == 120
    assert all(layer.keys.shape[-2] == 120 for layer in joined.layers)


def test_building_is_compared_for_each_length(llama):
    found = measure_build(llama, [32, 16], repeats=1).tables[0]
    assert [row["tokens"] for row in found.rows] == [16, 32]
    assert all(row["packets_over_plain"].median > 0 and row["stored"].median > 0 for row in found.rows)


def test_a_store_is_measured_by_format_and_by_number_of_vectors(llama):
    packets, search = measure_store(
        llama, [100], embedder=HashEmbedder(), storages=("float32", "int8"), repeats=1
    ).tables
    assert [row["storage"] for row in packets.rows] == ["float32", "int8"]
    assert packets.rows[0]["share"] == 1
    assert 0.2 < packets.rows[1]["share"] < 0.5
    assert search.rows[0]["vectors"] == 100
    assert search.rows[0]["open"] > 0


def test_load_is_measured_for_each_number_of_clients(llama):
    (table,) = measure_load(llama, [2, 1], questions=3, embedder=HashEmbedder()).tables
    assert [row["clients"] for row in table.rows] == [1, 2]
    assert all(0 < row["p50"] <= row["p99"] and row["full_rate"] > 0 and row["batch_rate"] > 0 for row in table.rows)
    with pytest.raises(InputError, match="at least 1"):
        measure_load(llama, [0])


@pytest.mark.parametrize("measure", [measure_decode, measure_build, measure_peers])
def test_no_rounds_and_no_tokens_are_refused(llama, measure):
    with pytest.raises(InputError, match="repeats must be at least 1"):
        measure(llama, [512], repeats=0)
    with pytest.raises(InputError, match="tokens must be at least 1"):
        measure_decode(llama, [256], tokens=0)


def test_peers_are_measured_without_llama_cpp_unless_a_file_is_given(llama, tmp_path, monkeypatch):
    main, beside = measure_peers(llama, [512], repeats=1).tables
    assert {"ram", "disk", "full", "reload"} <= set(main.rows[0])
    assert [column.key for column in beside.columns] == ["context", "full_over_ram", "reload_over_ram"]
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependencyError, match="peers"):
        measure_peers(llama, [512], gguf=tmp_path / "model.gguf")


def test_a_shape_that_is_unknown_or_a_device_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"llama-3\.1-8b"):
        random_model("llama-9")
    with pytest.raises(ModelLoadError, match="nowhere"):
        random_model("llama-3.1-8b", device="nowhere")
