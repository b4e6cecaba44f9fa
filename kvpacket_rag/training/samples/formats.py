"""Readers of questions with their passages, on which adapters are trained and methods are compared.

They read the published formats of SQuAD, NaturalQuestions with oracle passages, MuSiQue and HotpotQA, and JSON lines.
Generators of questions are in `synthetic`. This module handles texts only; `prompts` converts them to tokens.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvpacket_rag.errors import InputError, KVPacketError, require
from kvpacket_rag.training.samples.sample import Sample, Split

__all__ = ["FORMATS", "load_samples"]

HUB = "hf:"


def _squad(data: Mapping[str, Any]) -> Iterator[Sample]:
    paragraphs = (paragraph for article in data["data"] for paragraph in article["paragraphs"])
    for row, paragraph in enumerate(paragraphs):
        for qa in paragraph["qas"]:
            answers = tuple(dict.fromkeys(answer["text"] for answer in qa["answers"]))
            yield Sample(qa["question"], answers, (paragraph["context"],), row, gold=1)


def _contexts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{context['title']}\n{context['text']}" if context.get("title") else context["text"] for context in row["ctxs"]
    )


def _nq(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    for number, row in enumerate(rows):
        yield Sample(row["question"], tuple(row["answers"]), _contexts(row)[:1], number, gold=1)


def _musique(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    """Read rows with `ctxs`, or rows of the published format with `paragraphs`. Supporting paragraphs come first."""
    for number, row in enumerate(rows):
        if "ctxs" in row:
            yield Sample(row["question"], tuple(row["answers"]), _contexts(row), number, complete=True)
            continue
        paragraphs = sorted(row["paragraphs"], key=lambda paragraph: not paragraph.get("is_supporting", False))
        texts = tuple(f"{paragraph['title']}\n{paragraph['paragraph_text']}" for paragraph in paragraphs)
        answers = (row["answer"], *row.get("answer_aliases", ()))
        gold = sum(paragraph.get("is_supporting", False) for paragraph in paragraphs)
        yield Sample(row["question"], answers, texts, number, gold=gold, complete=True)


def _hotpotqa(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    for number, row in enumerate(rows):
        context, facts = row["context"], row["supporting_facts"]
        if isinstance(context, Mapping):  # the hub's copy has columns instead of pairs
            context = list(zip(context["title"], context["sentences"], strict=True))
            facts = list(zip(facts["title"], facts["sent_id"], strict=True))
        needed = {title for title, _ in facts}
        ordered = sorted(context, key=lambda pair: pair[0] not in needed)
        texts = tuple(f"{title}\n{''.join(sentences).strip()}" for title, sentences in ordered)
        gold = sum(title in needed for title, _ in ordered)
        yield Sample(row["question"], (row["answer"],), texts, number, gold=gold, complete=True)


def _jsonl(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    """Read rows with `question`, `passages`, and optionally `answers` or `answer`."""
    for number, row in enumerate(rows):
        answers = row.get("answers", [row["answer"]] if "answer" in row else [])
        yield Sample(row["question"], _texts(answers), _texts(row["passages"]), number)


FORMATS: Mapping[str, Callable[[Any], Iterator[Sample]]] = {
    "squad": _squad,
    "nq": _nq,
    "musique": _musique,
    "hotpotqa": _hotpotqa,
    "jsonl": _jsonl,
}


def _squad_rows(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Group the rows of the hub's SQuAD (one per question) by paragraph, as in the published file."""
    paragraphs: dict[str, list[Any]] = {}
    for row in rows:
        answers = [{"text": text} for text in row["answers"]["text"]]
        paragraphs.setdefault(row["context"], []).append({"question": row["question"], "answers": answers})
    return {"data": [{"paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs.items()]}]}


def _from_hub(name: str, kind: str) -> Any:
    """Read `hf:DATASET[:CONFIGURATION]:SPLIT` with the `datasets` library of Hugging Face."""
    datasets = require("datasets", extra="hub", purpose=f"Reading {name}")
    dataset, *configuration = name.removeprefix(HUB).split(":")
    split = configuration.pop() if configuration else ""
    if not split or len(configuration) > 1:
        raise InputError(
            f"A data set of the hub is named hf:DATASET:SPLIT or hf:DATASET:CONFIGURATION:SPLIT; got {name!r}."
        )
    rows = list(datasets.load_dataset(dataset, *configuration, split=split))
    return _squad_rows(rows) if kind == "squad" else rows


def _parse(path: Path) -> Any:
    """Read JSON or JSON lines, compressed or not."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # splitlines() would also split at characters that may occur within a JSON text.
        return [json.loads(line) for line in text.split("\n") if line.strip()]


def _check(sample: Sample, path: str | Path) -> None:
    """Raise `InputError` with the number of the row unless all parts are texts that are not empty."""
    parts = {"question": (sample.question,), "answers": sample.answers, "passages": sample.passages}
    for name, texts in parts.items():
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError(
                f"Row {sample.row} of {path}: {name} must be texts that are not empty; got {texts!r:.200}."
            )
    if not sample.passages:
        raise InputError(f"Row {sample.row} of {path} has no passages; expected at least one.")


def _texts(value: Any) -> tuple[Any, ...]:
    """Return the texts as a tuple. A single text becomes a tuple of one."""
    return (value,) if isinstance(value, str) else tuple(value)


def load_samples(path: str | Path, kind: str, split: Split = Split.ALL) -> list[Sample]:
    """Read samples from a file (JSON or JSON lines, gzipped or not) or from a data set of the Hugging Face hub.

    path: a file, or `hf:DATASET:SPLIT`, or `hf:DATASET:CONFIGURATION:SPLIT`. kind: one of `FORMATS`.
    Raises `InputError` for an unknown format, a file that cannot be read or has another format, or a row without
    question or passages.
    """
    if kind not in FORMATS:
        raise InputError(f"The format must be one of {', '.join(FORMATS)}; got {kind!r}.")
    try:
        data = _from_hub(str(path), kind) if str(path).startswith(HUB) else _parse(Path(path))
        if kind == "jsonl" and isinstance(data, dict):  # a file of one line
            data = [data]
        samples = list(FORMATS[kind](data))
    except KVPacketError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path} cannot be read as JSON or JSON lines: {error}.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not of the format {kind!r}: {type(error).__name__} {error}. Choose another --format."
        ) from error
    for sample in samples:
        _check(sample, path)
    chosen = [sample for sample in samples if split.holds(sample.row)]
    if not chosen:
        raise InputError(f"{path} holds no samples of the split {split.value!r}.")
    return chosen
