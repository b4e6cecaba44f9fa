"""Reading question files of published formats, splits, draws, and made-up questions."""

from __future__ import annotations

import gzip
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError, MissingDependencyError
from kvpacket_rag.training.samples.formats import FORMATS, load_samples
from kvpacket_rag.training.samples.prompts import Questions
from kvpacket_rag.training.samples.sample import Sample, Split, contains, take, with_distractors
from kvpacket_rag.training.samples.synthetic import GENERATORS, generate_samples, needle

SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": f"The lamp number {n} is green.",
                    "qas": [
                        {"question": f"What colour has lamp {n}?", "answers": [{"text": "green"}, {"text": "green"}]},
                        {"question": f"Which lamp is {n}?", "answers": [{"text": "The lamp"}]},
                    ],
                }
                for n in range(6)
            ]
        }
    ]
}
NQ = [
    {"question": f"q{n}", "answers": ["a"], "ctxs": [{"title": "T", "text": f"text {n}"}, {"text": "no"}]}
    for n in range(6)
]
MUSIQUE = [
    {"question": f"q{n}", "answers": ["a"], "ctxs": [{"title": "", "text": f"t{n}{c}"} for c in range(3)]}
    for n in range(6)
]
MUSIQUE_PUBLISHED = [
    {
        "question": f"q{n}", "answer": "a", "answer_aliases": ["b"],
        "paragraphs": [
            {"title": "x", "paragraph_text": "other", "is_supporting": False},
            {"title": "y", "paragraph_text": "needed", "is_supporting": True},
        ],
    }
    for n in range(6)
]  # fmt: skip
HOTPOT = [
    {
        "question": f"q{n}", "answer": "a",
        "context": [["x", ["other. "]], ["y", ["needed. ", "too."]]], "supporting_facts": [["y", 0]],
    }
    for n in range(6)
]  # fmt: skip
HOTPOT_COLUMNS = [
    {
        **row,
        "context": {"title": ["x", "y"], "sentences": [["other. "], ["needed. ", "too."]]},
        "supporting_facts": {"title": ["y"], "sent_id": [0]},
    }
    for row in HOTPOT
]
LINES = [{"question": f"q{n}", "passages": ["one", "two"], "answer": "a"} for n in range(6)]


def written(path: Path, value: object, *, lines: bool = False, packed: bool = False) -> Path:
    text = "\n".join(map(json.dumps, value)) if lines else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize(
    ("kind", "value", "lines", "passages", "answers"),
    [
        ("squad", SQUAD, False, ("The lamp number 0 is green.",), ("green",)),
        ("nq", NQ, True, ("T\ntext 0",), ("a",)),
        ("musique", MUSIQUE, False, ("t00", "t01", "t02"), ("a",)),
        ("musique", MUSIQUE_PUBLISHED, True, ("y\nneeded", "x\nother"), ("a", "b")),
        ("hotpotqa", HOTPOT, False, ("y\nneeded. too.", "x\nother."), ("a",)),
        ("hotpotqa", HOTPOT_COLUMNS, False, ("y\nneeded. too.", "x\nother."), ("a",)),
        ("jsonl", LINES, True, ("one", "two"), ("a",)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_formats_are_read(tmp_path: Path, kind, value, lines, passages, answers, packed):
    found = load_samples(written(tmp_path / "file", value, lines=lines, packed=packed), kind)
    assert (found[0].passages, found[0].answers, found[0].row) == (passages, answers, 0)
    assert len({sample.row for sample in found}) == 6


def test_splits_share_no_row_and_leave_none_out(tmp_path: Path):
    path = written(tmp_path / "file", SQUAD)
    train, test, everything = (load_samples(path, "squad", split) for split in (Split.TRAIN, Split.TEST, Split.ALL))
    assert {s.row for s in test} == {2, 5}
    assert sorted([*train, *test], key=lambda s: (s.row, s.question)) == sorted(
        everything, key=lambda s: (s.row, s.question)
    )


def test_a_draw_is_the_beginning_of_a_longer_one_and_takes_new_rows_first(tmp_path: Path):
    samples = load_samples(written(tmp_path / "file", SQUAD), "squad")
    assert take(samples, 3, 0) == take(samples, 12, 0)[:3]
    assert len({sample.row for sample in take(samples, 6, 0)}) == 6
    assert len(take(samples, 100, 0)) == 12
    assert take(samples, 6, 0) != take(samples, 6, 1)


def test_distractors_come_from_other_rows_and_never_repeat(tmp_path: Path):
    samples = load_samples(written(tmp_path / "file", SQUAD), "squad")
    twice = [replace(sample, row=sample.row + 100) for sample in samples]  # rows of a file may share a passage
    filled = with_distractors(samples, [*samples, *twice], 4, 0)
    for before, after in zip(samples, filled, strict=True):
        assert after.passages[0] == before.passages[0]
        assert len(set(after.passages)) == 4
    assert filled == with_distractors(samples, [*samples, *twice], 4, 0)
    assert filled != with_distractors(samples, [*samples, *twice], 4, 1)


@pytest.mark.parametrize("kind", [*FORMATS])
@pytest.mark.parametrize("content", ["", "{", "3", "[1]", '{"a": 1}', "[]", '[{"question": "q"}]'])
def test_other_files_are_errors_that_name_the_file(tmp_path: Path, kind: str, content: str):
    (tmp_path / "some.json").write_text(content)
    with pytest.raises(InputError, match=r"some\.json"):
        load_samples(tmp_path / "some.json", kind)


def test_a_missing_file_and_an_unknown_format_are_errors(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        load_samples(tmp_path / "none", "squad")
    with pytest.raises(InputError, match="squad, nq"):
        load_samples(tmp_path / "none", "trivia")


@pytest.mark.parametrize("kind", list(GENERATORS))
def test_made_up_questions_repeat_by_seed_and_are_answered_by_the_first_passage_only(kind: str):
    made = generate_samples(kind, 30, 4, seed=1)
    assert made == generate_samples(kind, 40, 4, seed=1)[:30]
    assert made != generate_samples(kind, 30, 4, seed=2)
    for sample in made:
        assert len(set(sample.passages)) == 4
        assert contains(sample.passages[0], sample.answers)
    alone = [not any(contains(p, sample.answers) for p in sample.passages[1:]) for sample in made]
    assert sum(alone) > 20, "a profile may by chance share a town with another, seldom"


def test_needles_lie_at_every_depth_of_passages_as_long_as_asked():
    places = set()
    for number in range(60):
        sample = needle(number, 2, seed=0, sentences=5)
        sentences = sample.passages[0].split(". ")
        assert len(sentences) == 6
        places.add(next(i for i, text in enumerate(sentences) if "number written" in text))
    assert places == set(range(6))


def test_an_unknown_generator_is_an_error():
    with pytest.raises(InputError, match="biography, needle"):
        generate_samples("poem", 1, 1, 0)


def test_prompts_hold_the_piece_with_the_answer_within_the_length(llama: PacketModel):
    long = "Nothing is said here. " * 10 + "The secret word is plum. " + "Nor is it here. " * 10
    sample = Sample("Which word?", ("plum",), ("An unrelated text.", long, "Another one."), row=0)
    question = Questions(llama, 60).make(sample, 2, "seed")
    texts = [llama.text.decode(chunk) for chunk in question.chunks]
    assert len(texts) == 2
    assert any("plum" in text for text in texts)
    assert max(map(len, question.chunks)) <= 60
    assert all(chunk[-2:] == llama.text.separator for chunk in question.chunks)


def test_orders_differ_by_seed_and_repeat(llama: PacketModel):
    sample = Sample("Q?", (), tuple(f"text {n}" for n in range(6)), row=0)
    makers = Questions(llama, 60)
    assert makers.make(sample, 6, "a") == makers.make(sample, 6, "a")
    assert len({makers.make(sample, 6, str(n)).chunks for n in range(5)}) > 1


class FakeHub(types.ModuleType):
    """Stands for the library `datasets`, which reads from the network."""

    asked: tuple[object, ...] = ()

    def load_dataset(self, *names: str, split: str) -> list[dict[str, object]]:
        FakeHub.asked = (*names, split)
        if names[0] == "squad":
            return [
                {"context": "One.", "question": f"q{n}", "answers": {"text": ["One"]}, "id": str(n)} for n in range(2)
            ] + [{"context": "Two.", "question": "q", "answers": {"text": ["Two"]}, "id": "2"}]
        return HOTPOT_COLUMNS


@pytest.mark.parametrize(
    ("name", "kind", "asked", "rows"),
    [
        ("hf:squad:validation", "squad", ("squad", "validation"), [0, 0, 1]),
        (
            "hf:hotpotqa/hotpot_qa:distractor:train",
            "hotpotqa",
            ("hotpotqa/hotpot_qa", "distractor", "train"),
            [*range(6)],
        ),
    ],
)
def test_data_sets_of_the_hub_are_read_as_their_files(monkeypatch, name, kind, asked, rows):
    monkeypatch.setitem(sys.modules, "datasets", FakeHub("datasets"))
    assert [sample.row for sample in load_samples(name, kind)] == rows
    assert FakeHub.asked == asked


def test_a_missing_library_and_a_wrong_name_are_errors(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"kvpacket-rag\[hub\]"):
        load_samples("hf:squad:validation", "squad")
    monkeypatch.setitem(sys.modules, "datasets", FakeHub("datasets"))
    with pytest.raises(InputError, match="hf:DATASET:SPLIT"):
        load_samples("hf:a:b:c:d", "squad")


def test_a_title_alone_is_no_chunk(llama: PacketModel):
    passage = "Plum\n" + "The plum is a fruit that ripens in late summer on small trees. " * 4
    makers = Questions(llama, 60)
    for answers in ((), ("plum",)):
        assert len(makers.chunk(passage, answers)) > 40


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "passages": "one text", "answers": ["a"]}, None),
        ({"question": "q", "passages": ["x"], "answers": "a"}, None),
        ({"question": "q\u2028r", "passages": ["x"]}, None),
        ({"question": "q", "passages": ["x"], "answers": [1889]}, "answers must be texts"),
        ({"question": "q", "passages": ["x", " "]}, "passages must be texts"),
        ({"question": "", "passages": ["x"]}, "question must be texts"),
        ({"question": "q", "passages": []}, "no passages"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path: Path, row: dict[str, object], message: str | None):
    path = tmp_path / "rows.jsonl"
    rows = [{"question": "fine", "passages": ["x"]}, row]
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in rows), encoding="utf-8")
    if message:
        with pytest.raises(InputError, match=rf"Row 1 of .*{message}"):
            load_samples(path, "jsonl")
    else:
        found = load_samples(path, "jsonl")[1]
        assert all(len(passage) in (1, 8) for passage in found.passages)
        assert found.answers in ((), ("a",))


def test_a_damaged_archive_is_an_error(tmp_path: Path):
    whole = gzip.compress(json.dumps(LINES).encode())
    for damaged in (whole[:20], whole[:14] + b"\xff\xff\xff" + whole[17:]):
        (tmp_path / "file.gz").write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be read"):
            load_samples(tmp_path / "file.gz", "jsonl")
