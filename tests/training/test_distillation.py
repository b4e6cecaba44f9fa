"""Training: gradients pass through the real path, runs go on where they stopped, the gate decides."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvpacket_rag.bench.measures import kl_per_token
from kvpacket_rag.engine.assembly import assemble
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import PARTS, Adapter
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.training import DistillConfig, Sizes, Start, Variety, draw_lessons
from kvpacket_rag.training.checkpoint import FILE
from kvpacket_rag.training.distillation import distill
from kvpacket_rag.training.lessons import Lessons
from kvpacket_rag.training.loss import top_kl, top_logits
from kvpacket_rag.training.parts import start_values
from kvpacket_rag.training.samples.synthetic import generate_samples
from kvpacket_rag.training.student import packets_of, student_logits
from tests.conftest import VOCABULARY, tiny_model

CHUNKS = [[7, 8, 9, 10, 11], [12, 13, 14]]
PREFIX, TAIL, ANCHOR = [1, 5, 6], [20, 21, 22, 23], [30, 31, -1, -2]
VARIETY = Variety(k=(2, 3), chunk_tokens=(24, 40))
QUICK = DistillConfig(
    sizes=Sizes(1, 1, 2), steps=4, batch=2, accumulate=1, evaluate_every=2, answer_tokens=5, learning_rate=0.05,
    anchor=Anchor.OPENING,
)  # fmt: skip


def adapted(model: PacketModel, parts: dict[str, torch.Tensor], *, differentiable: bool) -> PacketModel:
    return model.with_adapter(Adapter(**parts), differentiable=differentiable)


def some_parts(model: PacketModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {name: torch.randn(2, model.hidden_size, generator=generator) for name in PARTS}


def logits_of(model: PacketModel) -> torch.Tensor:
    packets = model.encode(CHUNKS, anchor=ANCHOR)
    context = assemble(model, PREFIX, packets, room=20)
    return model.logits(context.cache, TAIL, keep=len(TAIL), bridge=model.adapter.bridge)[0]


def test_the_differentiable_path_gives_the_same_logits(any_model: PacketModel):
    parts = some_parts(any_model)
    plain, traced = (logits_of(adapted(any_model, parts, differentiable=d)) for d in (False, True))
    assert torch.allclose(plain, traced, atol=1e-5, rtol=1e-5)


def test_gradients_of_every_part_are_those_of_small_differences(any_model: PacketModel):
    """The derivative along a direction, against a central difference through the plain path."""
    parts = {name: part.requires_grad_() for name, part in some_parts(any_model).items()}
    weights = torch.randn(len(TAIL), any_model.vocabulary_size, generator=torch.Generator().manual_seed(5))

    def value(values: dict[str, torch.Tensor], *, differentiable: bool = False) -> torch.Tensor:
        logits = logits_of(adapted(any_model, values, differentiable=differentiable))
        return (logits.log_softmax(-1) * weights).sum().double()

    value(parts, differentiable=True).backward()
    for name in parts:
        direction = torch.randn(parts[name].shape, generator=torch.Generator().manual_seed(6))
        direction /= direction.norm()
        step = 3e-3
        with torch.no_grad():
            ends = [value({**parts, name: parts[name] + sign * step * direction}) for sign in (1, -1)]
        expected = float((ends[0] - ends[1]) / (2 * step))
        found = float((parts[name].grad * direction).sum())
        assert found == pytest.approx(expected, rel=0.05, abs=0.05), name


def test_weights_get_no_gradient_and_do_not_change(llama: PacketModel):
    before = [p.clone() for p in llama._hf.parameters()]
    parts = {name: part.requires_grad_() for name, part in some_parts(llama).items()}
    logits_of(adapted(llama, parts, differentiable=True)).sum().backward()
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(llama._hf.parameters(), before, strict=True))


def test_users_of_the_plain_path_build_no_graph(llama: PacketModel):
    assert not logits_of(llama.with_adapter(Adapter(**some_parts(llama)))).requires_grad


def test_kl_from_the_top_tokens_is_the_kl_when_all_are_kept_and_never_more():
    generator = torch.Generator().manual_seed(0)
    teacher, student = (3 * torch.randn(6, 50, generator=generator) for _ in range(2))
    exact = kl_per_token(teacher, student)
    assert torch.allclose(top_kl(top_logits(teacher, 50), student), exact, atol=1e-4)
    lumped = top_kl(top_logits(teacher, 8), student)
    assert (lumped <= exact + 1e-5).all()
    assert (lumped >= -1e-6).all()


def samples(n: int = 6):
    return generate_samples("biography", n, 3, 1)


def lessons_of(model: PacketModel, n: int = 6):
    return draw_lessons(model, [("biography", samples(n)), ("needle", generate_samples("needle", n, 3, 2))], VARIETY, 0)


def test_lessons_vary_and_are_drawn_alike_for_a_seed(llama: PacketModel):
    lessons = lessons_of(llama)
    assert lessons == lessons_of(llama)
    assert {len(lesson.question.chunks) for lesson in lessons} == {2, 3}
    assert {lesson.domain for lesson in lessons[:4]} == {"biography", "needle"}
    assert max(len(c) for lesson in lessons for c in lesson.question.chunks) <= 40


def test_a_taught_lesson_is_read_from_disk_the_second_time(llama: PacketModel, tmp_path: Path):
    books = [Lessons(llama, lessons_of(llama), tmp_path, answer_tokens=4) for _ in range(2)]
    first = books[0][0]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = books[1][0]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert again.answer == first.answer
    assert torch.equal(again.at_answer.ids, first.at_answer.ids)
    next(iter(files)).write_bytes(b"cut off")
    assert books[1][0].answer == first.answer


def test_packets_of_several_lessons_in_one_batch_are_those_of_each(llama: PacketModel):
    lessons = lessons_of(llama)[:3]
    together = packets_of(llama, lessons, QUICK)
    for lesson, packets in zip(lessons, together, strict=True):
        (alone,) = packets_of(llama, [lesson], QUICK)
        for a, b in zip(packets, alone, strict=True):
            assert a.token_ids == b.token_ids
            assert torch.allclose(a.states[0].keys, b.states[0].keys, atol=1e-5)


def test_training_lowers_the_distance_to_the_teacher(llama: PacketModel, tmp_path: Path):
    lessons = lessons_of(llama, 4)
    start, trained = (
        distill(llama, lessons, lessons, tmp_path / name, replace(QUICK, steps=steps, learning_rate=rate, patience=50))
        for name, steps, rate in (("start", 1, 1e-9), ("trained", 60, 3e-2))
    )
    assert sum(trained.best.values()) < 0.8 * sum(start.best.values())
    assert sum(entry["loss"] for entry in trained.history[-8:]) < 0.85 * sum(e["loss"] for e in trained.history[:8])


@pytest.mark.parametrize("sizes", [Sizes(bridge=2), Sizes(header=1, trailer=1), Sizes(1, 1, 2), Sizes(anchor=6)])
def test_an_interrupted_run_ends_as_one_that_was_not(llama: PacketModel, tmp_path: Path, sizes: Sizes):
    lessons = lessons_of(llama, 4)
    config = replace(QUICK, sizes=sizes)

    def stop_at(step: int):
        def report(progress):
            if progress.step == step:
                raise KeyboardInterrupt

        return report

    whole = distill(llama, lessons, lessons[:2], tmp_path / "whole", config)
    for step in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            distill(llama, lessons, lessons[:2], tmp_path / "cut", config, progress=stop_at(step))
    cut = distill(llama, lessons, lessons[:2], tmp_path / "cut", config)
    assert [entry["loss"] for entry in cut.history] == pytest.approx([entry["loss"] for entry in whole.history])
    assert cut.adapter.digest == whole.adapter.digest


def test_a_folder_with_another_run_is_refused(llama: PacketModel, tmp_path: Path):
    lessons = lessons_of(llama, 2)
    distill(llama, lessons, lessons, tmp_path, replace(QUICK, steps=1))
    with pytest.raises(InputError, match="another config"):
        distill(llama, lessons, lessons, tmp_path, replace(QUICK, steps=1, learning_rate=5.0))


@pytest.mark.parametrize(("domain", "weight"), [("needle", 2.0), ("biography", 2 / 3)])
def test_lessons_of_a_domain_that_diverges_little_count_as_much_more(
    llama: PacketModel, tmp_path: Path, monkeypatch, domain: str, weight: float
):
    run = importlib.import_module("kvpacket_rag.training.distillation")._Run
    monkeypatch.setattr(run, "measure", lambda run, adapter: {"biography": [0.2, 0.4], "needle": [0.1]})
    lessons = [lesson for lesson in lessons_of(llama, 4) if lesson.domain == domain]
    plain, balanced = (
        distill(llama, lessons, lessons, tmp_path / str(on), replace(QUICK, steps=1, balanced=on))
        for on in (False, True)
    )
    assert balanced.history[0]["loss"] == pytest.approx(weight * plain.history[0]["loss"], rel=1e-5)


def test_a_run_may_start_from_an_adapter_and_is_judged_against_the_model_without_it(llama: PacketModel, tmp_path: Path):
    config = replace(QUICK, sizes=Sizes(bridge=2), start=Start.PRESENT, learning_rate=1e-9)
    lessons = lessons_of(llama)
    initial = Adapter.of(start_values(llama, Sizes(bridge=2), Start.RANDOM, seed=5))
    trained = distill(llama, lessons[:4], lessons[4:], tmp_path / "a", config, initial=initial)
    plain = distill(llama, lessons[:4], lessons[4:], tmp_path / "b", config)
    assert torch.allclose(trained.adapter.bridge, initial.bridge, atol=1e-5)
    assert trained.without == plain.without
    with pytest.raises(InputError, match="another initial"):
        distill(llama, lessons[:4], lessons[4:], tmp_path / "b", config, initial=initial)
    with pytest.raises(InputError, match="start=present"):
        distill(llama, lessons[:4], lessons[4:], tmp_path, replace(config, start=Start.MEAN), initial=initial)


def test_the_card_says_what_was_trained_and_survives_the_file(llama: PacketModel, tmp_path: Path):
    lessons = lessons_of(llama, 2)
    trained = distill(llama, lessons, lessons, tmp_path, replace(QUICK, steps=1), data="biographies")
    trained.adapter.save(tmp_path / "adapter.safetensors")
    card = Adapter.load(tmp_path / "adapter.safetensors").card
    assert card == trained.adapter.card
    assert card.model == "tiny-llama"
    assert card.data == "biographies"
    assert set(card.fidelity) == set(card.without) == {"biography", "needle"}
    assert card.chunk_lengths[1] <= 40
    assert card.anchors == ("opening", "opening")
    with pytest.raises(Exception, match=r"tiny-llama.*tiny-qwen2"):
        tiny_model("qwen2").with_adapter(trained.adapter)


def test_checkpoints_are_safetensors_with_json(llama: PacketModel, tmp_path: Path):
    from safetensors import safe_open

    lessons = lessons_of(llama, 2)
    distill(llama, lessons, lessons, tmp_path, replace(QUICK, steps=1))
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert json.loads(file.metadata()["facts"])["history"]


@pytest.mark.parametrize("start", list(Start))
def test_every_start_gives_embeddings_of_the_models_own_size(llama: PacketModel, start: Start):
    parts = start_values(llama, Sizes(2, 3, 4, 5), start, seed=0)
    assert [tuple(parts[name].shape) for name in parts] == [(2, 64), (3, 64), (4, 64), (5, 64)]
    assert all(torch.isfinite(part).all() for part in parts.values())


def test_training_goes_on_from_the_parts_that_are_there_and_adds_those_asked_for(llama: PacketModel):
    present = start_values(llama, Sizes(bridge=2), Start.RANDOM, seed=3)
    adapted = llama.with_adapter(Adapter.of(present))
    parts = start_values(adapted, Sizes(bridge=5, anchor=4), Start.PRESENT, seed=0)
    assert torch.equal(parts["bridge"], present["bridge"])  # its own size stays
    assert len(parts["anchor"]) == 4
    assert len(parts["header"]) == len(parts["trailer"]) == 0


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"batch": 3, "accumulate": 2}, {"learning_rate": 0.0}, {"warm_up": 1.0}, {"clip": 0.0}]
)
def test_wrong_numbers_are_refused(change: dict[str, float]):
    with pytest.raises(InputError, match="must be"):
        replace(QUICK, **change)


@pytest.mark.parametrize("change", [{"k": (2, 0)}, {"k": ()}, {"chunk_tokens": (0,)}])
def test_prompts_without_chunks_are_refused(change):
    with pytest.raises(InputError, match="at least 1 chunk"):
        replace(VARIETY, **change)


def test_an_adapter_without_parts_cannot_be_trained():
    with pytest.raises(InputError, match="at least one embedding"):
        Sizes()


def test_learning_rates_rise_then_fall():
    config = replace(QUICK, steps=100, warm_up=0.1, learning_rate=1.0)
    rates = [config.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) <= 1.0
    assert rates[-1] < 0.02


def test_the_student_is_the_answering_model(llama: PacketModel, tmp_path: Path):
    """The student's logits at the answer are those a user's question gets from the same packets."""
    lessons = lessons_of(llama, 2)
    taught = Lessons(llama, lessons, tmp_path, answer_tokens=3)[0]
    (packets,) = packets_of(llama, [taught.lesson], QUICK)
    found = student_logits(llama, packets, taught)
    question = taught.lesson.question
    context = assemble(llama, question.prefix, packets, room=len(question.tail) + 3)
    first = llama.forward(context.cache, question.tail)[0]
    assert torch.allclose(found[len(question.tail) - 1], first, atol=1e-4)
    assert found.shape == (len(question.tail) + len(taught.answer) - 1, VOCABULARY)
