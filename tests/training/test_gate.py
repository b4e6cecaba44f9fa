"""What training keeps and offers: the best measurement, and only if it wins in every domain and not by chance."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.training import Sizes, Start, Variety, draw_lessons
from kvpacket_rag.training.distillation import distill
from kvpacket_rag.training.gate import passes, standard_errors
from kvpacket_rag.training.lessons import Lessons
from kvpacket_rag.training.parts import start_values
from tests.conftest import tiny_model
from tests.training.test_distillation import QUICK, lessons_of, samples


def test_the_gate_opens_for_an_adapter_that_is_better_in_every_domain(tmp_path: Path):
    """Without an anchor and with another model as teacher there is much to learn."""
    student, lessons = tiny_model("llama"), lessons_of(tiny_model("llama"), 4)
    taught = [Lessons(tiny_model("llama", seed=1), lessons, tmp_path, answer_tokens=5)[n] for n in range(len(lessons))]
    for lesson in taught:
        Lessons(student, lessons, tmp_path / "taught", answer_tokens=5).keep(lesson)
    config = replace(QUICK, steps=60, learning_rate=0.15, evaluate_every=10, sizes=Sizes(bridge=8))
    assert distill(student, lessons, lessons, tmp_path, config).accepted


def test_the_best_measurement_is_kept_and_not_the_last(llama: PacketModel, tmp_path: Path, monkeypatch):
    """Measurements are scripted: better, best, then four that are worse."""
    script, seen = [9.0, 5.0, 3.0, 4.0, 6.0, 3.5, 1.0], []  # KL of the one held-out lesson

    def measure(run, adapter):
        seen.append(adapter and adapter.digest)
        return {"biography": [script[len(seen) - 1]]}

    monkeypatch.setattr(importlib.import_module("kvpacket_rag.training.distillation")._Run, "measure", measure)
    lessons = lessons_of(llama, 4)
    trained = distill(llama, lessons, lessons[:2], tmp_path, replace(QUICK, steps=20, evaluate_every=1, patience=3))
    assert trained.without == {"biography": 9.0}
    assert trained.best == {"biography": 3.0}
    assert trained.adapter.digest == seen[2] != seen[-1]
    assert [entry["fidelity"] for entry in trained.history] == script[1:6], "nothing was won three times: it stops"


def test_parts_that_pass_the_gate_are_kept_before_nearer_ones_that_do_not(
    llama: PacketModel, tmp_path: Path, monkeypatch
):
    script_measurements(monkeypatch, [(9.0, 2.0), (6.0, 1.9), (1.0, 2.1), (5.0, 1.8), (0.5, 2.1)])
    lessons = lessons_of(llama, 4)
    trained = distill(llama, lessons, lessons[:2], tmp_path, replace(QUICK, steps=4, evaluate_every=1))
    assert trained.best == {"biography": 5.0, "needle": 1.8}
    assert trained.accepted


def test_patience_counts_from_the_parts_that_are_kept(llama: PacketModel, tmp_path: Path, monkeypatch):
    """The second has the least mean but is not offered; the third is the best, and training goes on after it."""
    script_measurements(monkeypatch, [(9.0, 2.0), (1.0, 2.1), (6.0, 1.9), (6.5, 1.9), (6.6, 1.9), (0.1, 0.1)])
    lessons = lessons_of(llama, 4)
    trained = distill(llama, lessons, lessons[:2], tmp_path, replace(QUICK, steps=9, evaluate_every=1, patience=2))
    assert trained.best == {"biography": 6.0, "needle": 1.9}
    assert len(trained.history) == 4


def script_measurements(monkeypatch, values: list[tuple[float, float]]) -> None:
    """Let the held-out lessons, one of each domain, measure as given: first without an adapter, then at each step."""
    script = iter(values)
    monkeypatch.setattr(
        importlib.import_module("kvpacket_rag.training.distillation")._Run,
        "measure",
        lambda run, adapter: {name: [value] for name, value in zip(("biography", "needle"), next(script), strict=True)},
    )


@pytest.mark.parametrize(
    ("after", "passing"),
    [
        ({"squad": [0.9, 1.9, 2.9], "nq": [0.9, 1.9, 2.9]}, True),
        ({"squad": [0.9, 1.9, 2.9], "nq": [1.1, 2.1, 2.7]}, False),  # a lower mean, by chance
        ({"squad": [0.1, 0.1, 0.1], "nq": [1.0, 2.0, 3.0]}, False),
        ({"squad": [0.1, 0.1, 0.1], "nq": [1.1, 2.1, 3.1]}, False),
    ],
)
def test_the_gate_wants_every_domain_better_by_more_than_a_standard_error(after, passing: bool):
    before = {"squad": [1.0, 2.0, 3.0], "nq": [1.0, 2.0, 3.0]}
    assert passes(before, after) is passing


def test_standard_errors_are_those_of_paired_differences():
    found = standard_errors({"a": [1.0, 2.0, 3.0, 4.0], "b": [1.0]}, {"a": [1.0, 1.0, 3.0, 3.0], "b": [0.5]})
    assert found == {"a": pytest.approx((1 / 3) ** 0.5 / 2), "b": 0.0}


def test_an_adapter_a_run_starts_from_is_measured_first_and_kept_if_nothing_is_better(
    llama: PacketModel, tmp_path: Path, monkeypatch
):
    script_measurements(monkeypatch, [(9.0, 2.0), (5.0, 1.5), (8.0, 1.9), (6.0, 1.6)])
    initial = Adapter.of(start_values(llama, Sizes(bridge=2), Start.RANDOM, seed=5))
    config = replace(QUICK, sizes=Sizes(bridge=2), start=Start.PRESENT, steps=2, evaluate_every=1)
    lessons = lessons_of(llama, 4)
    trained = distill(llama, lessons, lessons[:2], tmp_path, config, initial=initial)
    assert trained.best == {"biography": 5.0, "needle": 1.5}
    assert torch.equal(trained.adapter.bridge, initial.bridge)


def test_prompts_of_one_chunk_teach_an_anchor_nothing_and_stop_no_run(llama: PacketModel, tmp_path: Path):
    one = Variety(k=(1,), chunk_tokens=(24,))
    lessons = draw_lessons(llama, [("biography", samples(4))], one, 0)
    trained = distill(llama, lessons, lessons[:2], tmp_path, replace(QUICK, sizes=Sizes(anchor=4), steps=1))
    assert trained.adapter.card.training["chunks"] == [1, 1]
    assert not trained.accepted


def test_an_adapter_that_is_worse_in_one_domain_is_not_accepted(llama: PacketModel, tmp_path: Path):
    lessons = lessons_of(llama, 4)
    config = replace(QUICK, steps=1, learning_rate=25.0, warm_up=0.0, start=Start.RANDOM, sizes=Sizes(8, 8, 8))
    assert not distill(llama, lessons, lessons, tmp_path, config).accepted
