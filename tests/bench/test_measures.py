"""Measures of fidelity, and a whole comparison run on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvpacket_rag.bench import measures
from kvpacket_rag.bench.fidelity import RECORDS, FidelityConfig, run
from kvpacket_rag.bench.fidelity_report import markdown, summarise, write_report
from kvpacket_rag.bench.methods.registry import ALL, make_methods
from kvpacket_rag.engine.assembly import SOFT_TOKEN
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter, no_adapter
from kvpacket_rag.training.samples.domains import load_domains
from kvpacket_rag.training.samples.sample import contains

CONFIG = FidelityConfig(k=3, chunk_tokens=50, max_new_tokens=6)


def domains(n: int = 2):
    return load_domains([], ["biography", "needle"], n=n, k=3, split="test", seed=0)


def methods(names: str = "full,none,bare,anchored,epic-30"):
    return make_methods(names.split(","))


def test_kl_is_that_of_torch_and_zero_for_equal_distributions():
    one, two = torch.randn(5, 30), torch.randn(5, 30)
    expected = torch.nn.functional.kl_div(
        two.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert torch.allclose(measures.kl_per_token(one, two), expected, atol=1e-5)
    assert torch.allclose(measures.kl_per_token(one, one + 3.0), torch.zeros(5), atol=1e-5)
    assert measures.divergence(one, one).top1 == 1.0


@pytest.mark.parametrize(
    ("text", "answers", "f1", "em", "held"),
    [
        ("The Eiffel Tower.", ["Eiffel tower"], 1.0, 1.0, 1.0),
        ("It is the Eiffel Tower", ["Eiffel Tower"], 2 / 3, 0.0, 1.0),
        ("in 1889", ["1888", "1889"], 2 / 3, 0.0, 1.0),
        ("a seaplane", ["plane"], 0.0, 0.0, 0.0),
        ("", ["plane"], 0.0, 0.0, 0.0),
        ("anything", [], 0.0, 0.0, 0.0),
        ("well-known man", ["well known man"], 1.0, 1.0, 1.0),
    ],
)
def test_answers_are_compared_as_squad_does(text, answers, f1, em, held):
    assert measures.f1(text, answers) == pytest.approx(f1)
    assert measures.exact_match(text, answers) == em
    assert contains(text, answers) == held


def test_intervals_hold_the_mean_and_shrink_with_more_values():
    values = torch.randn(400, generator=torch.Generator().manual_seed(1)).tolist()
    few, many = measures.interval(values[:20]), measures.interval(values)
    for spread in (few, many):
        assert spread.low < spread.mean < spread.high
    assert many.high - many.low < few.high - few.low
    assert many.mean == pytest.approx(sum(values) / 400)


def test_domains_count_alike_however_many_values_they_have():
    spread = measures.interval([1.0] * 99 + [3.0], ["a"] * 99 + ["b"])
    assert (spread.mean, spread.low, spread.high) == (2.0, 2.0, 2.0)


def test_ratios_are_of_means_and_drawn_in_pairs():
    others = [float(n) for n in range(1, 50)]
    spread = measures.ratio_interval([0.5 * value for value in others], others)
    assert spread.low == pytest.approx(0.5)
    assert spread.high == pytest.approx(0.5)


def test_full_prefill_diverges_from_itself_by_nothing_and_others_do(llama: PacketModel, tmp_path: Path):
    records = run(llama, domains(), methods(), CONFIG, tmp_path)
    assert len(records) == 2 * 2 * 5
    for record in records:
        if record.method == "full":
            assert record.kl < 1e-5
            assert record.top1 == 1.0
            assert record.bytes_per_token == 0
        else:
            assert record.kl > 1e-4
    bare = [record.bytes_per_token for record in records if record.method == "bare"]
    assert set(bare) == {3 * 2 * 2 * 16 * 4}  # layers, tensors, heads, dimensions, bytes


def test_a_methods_own_answer_is_that_of_decoding_without_the_references(llama: PacketModel, tmp_path: Path):
    """The answer goes on from the first token chosen otherwise; checked against plain greedy decoding."""
    from kvpacket_rag.answering.generation import GenerationConfig, generate
    from kvpacket_rag.training.samples.prompts import Questions

    parts = domains(4)
    for record in run(llama, parts, methods("bare,samkv-30"), CONFIG, tmp_path):
        sample = next(d for d in parts if d.name == record.domain).samples[record.number]
        question = Questions(llama, 50).make(sample, 3, f"0:{record.domain}:{record.number}")
        (method,) = methods(record.method)
        begun = method.begin(llama, question, method.packets(llama, question.chunks), 6)
        # The generator counts positions by tokens; where some were dropped, as many stand-ins keep it right.
        begun.context.token_ids[:0] = [SOFT_TOKEN] * begun.skipped
        pieces = generate(llama, begun.context, begun.logits, GenerationConfig(max_new_tokens=6))
        assert record.answer == "".join(piece.text for piece in pieces).strip()


def test_tokens_computed_are_those_that_were_run(llama: PacketModel, tmp_path: Path):
    computed: dict[str, list[float]] = {}
    for record in run(llama, domains(), methods("full,bare,epic-50,cacheblend-50,a3-50"), CONFIG, tmp_path):
        computed.setdefault(record.method, []).append(record.tokens_computed)
    for full, bare, epic, blend, a3 in zip(*computed.values(), strict=True):
        context = full - bare
        assert bare + 0.2 * context < epic < bare + 0.5 * context
        assert epic + 0.3 * context < blend < epic + 2 / 3 * context, "two of three layers for all chunk tokens"
        assert a3 == pytest.approx(epic + bare, rel=0.05), "the question twice"


def test_questions_without_labels_have_no_f1(llama: PacketModel, tmp_path: Path):
    part = domains(2)[0]
    bare = replace(part, samples=tuple(replace(sample, answers=()) for sample in part.samples))
    records = run(llama, [bare], methods("full,bare"), CONFIG, tmp_path)
    assert {record.f1 for record in records} == {None}
    report = summarise(records, llama, [bare], CONFIG)
    assert report["methods"]["bare"]["f1"] is None
    assert "| – |" in write_report(report, tmp_path)


def test_results_of_another_question_are_not_taken_up(llama: PacketModel, tmp_path: Path):
    part = domains(1)[0]
    run(llama, [part], methods("bare"), CONFIG, tmp_path)
    other = replace(part, samples=(replace(part.samples[0], question="Where is the town?"),))
    run(llama, [other], methods("bare"), CONFIG, tmp_path)
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 1 + 2


def test_lists_leave_out_methods_without_their_adapter():
    assert [method.name for method in make_methods(["core"])] == ["full", "none", "bare", "anchored"]


def test_an_interrupted_run_goes_on_and_more_methods_and_questions_are_added(llama: PacketModel, tmp_path: Path):
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(llama, domains(), methods("bare"), CONFIG, tmp_path, progress=stop)
    path = tmp_path / RECORDS
    first = path.read_text().splitlines()
    assert len(first) == 1 + 3
    path.write_text("\n".join([*first, '{"domain": "bio']))  # killed while writing
    records = run(llama, domains(3), methods("bare,anchored"), CONFIG, tmp_path)
    assert len(records) == 3 * 2 * 2
    lines = path.read_text().splitlines()
    assert lines[:4] == first
    assert len(lines) == 1 + 12


def test_results_of_another_adapter_are_not_taken_up(llama: PacketModel, tmp_path: Path):
    for number, adapter in enumerate((no_adapter(64), Adapter.of({"bridge": torch.ones(2, 64)}))):
        records = run(llama, domains(1), make_methods(["packet"], packet=adapter), CONFIG, tmp_path)
        assert len((tmp_path / RECORDS).read_text().splitlines()) == 1 + 2 * (number + 1)
    assert len(records) == 2


def test_a_folder_of_another_run_is_refused(llama: PacketModel, tmp_path: Path):
    run(llama, domains(1), methods("full"), CONFIG, tmp_path)
    with pytest.raises(InputError, match="another config"):
        run(llama, domains(1), methods("full"), FidelityConfig(k=2), tmp_path)


def test_the_report_has_every_method_with_its_measures(llama: PacketModel, tmp_path: Path):
    everything = make_methods(ALL, packet=no_adapter(64), paper=no_adapter(64))
    parts = domains(2)
    records = run(llama, parts, everything, CONFIG, tmp_path)
    report = summarise(records, llama, parts, CONFIG)
    text = write_report(report, tmp_path)
    saved = json.loads((tmp_path / "report.json").read_text())
    assert set(saved["methods"]) == {method.name for method in everything}
    measures = {"kl", "top1", "f1", "em", "contains", "ttft_s", "tokens_computed", "flops", "bytes_per_token"}
    for name, values in saved["methods"].items():
        assert measures <= set(values), name
        assert set(values["kl"]) == {"mean", "low", "high"}
    assert saved["methods"]["epic-30"]["kl_over_bare"]["mean"] < 1.5
    assert saved["domains"]["needle"]["n"] == 2
    assert saved["versions"]["torch"] == torch.__version__
    assert text == markdown(report)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    for name in saved["methods"]:
        assert f"| {name} |" in text


@pytest.mark.parametrize("change", [{"k": 0}, {"chunk_tokens": 0}, {"max_new_tokens": 0}])
def test_wrong_numbers_are_refused(change: dict[str, int]):
    with pytest.raises(InputError, match="at least 1"):
        FidelityConfig(**change)


@pytest.mark.parametrize("split", ["train", "test", "all"])
def test_passages_of_the_corpus_belong_to_no_question_and_stay_when_more_are_asked(tmp_path: Path, split: str):
    rows = [{"question": f"q{n}?", "answers": ["a"], "ctxs": [{"title": "", "text": f"text {n}"}]} for n in range(30)]
    path = tmp_path / "nq.json"
    path.write_text(json.dumps(rows))
    few, more = (load_domains([path], ["nq", "needle"], n=n, k=2, split=split, seed=0) for n in (3, 6))
    for domain in (*few, *more):
        shown = {passage for sample in domain.samples for passage in sample.passages}
        assert domain.corpus
        assert not shown & set(domain.corpus)
    if split != "all":  # where all rows may be asked, none are set apart
        assert [domain.corpus for domain in few] == [domain.corpus for domain in more]


def test_a_method_of_the_corpus_is_measured_with_each_domains_own(llama: PacketModel, tmp_path: Path):
    records = run(llama, domains(1), methods("own-1,anchored"), CONFIG, tmp_path)
    own = [record.identity for record in records if record.method == "own-1"]
    assert len(own) == len(set(own)) == 2
    assert run(llama, domains(1), methods("own-1,anchored"), CONFIG, tmp_path) == records


def test_files_and_formats_must_match(tmp_path: Path):
    with pytest.raises(InputError, match="one --format for each --data"):
        load_domains([tmp_path / "a"], ["biography"], n=1, k=1, split="test", seed=0)
    with pytest.raises(InputError, match="train, test, all"):
        load_domains([], ["needle"], n=1, k=1, split="most", seed=0)
