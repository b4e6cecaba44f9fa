"""The fidelity benchmark: how close methods come to full prefill on the same samples in one run, and what that costs.

For each sample, full prefill generates the reference answer once. Each method then builds its context and is timed to
its first token. To compare distributions, it receives the tokens of the reference answer. From the first token that it
would choose differently, it generates its own answer. Results are appended to a file sample by sample, so that an
interrupted run can resume.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kvpacket_rag.bench.environment import versions
from kvpacket_rag.bench.measures import divergence, exact_match, f1
from kvpacket_rag.bench.methods.base import AbstractMethod, Begun
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.packet import Packet
from kvpacket_rag.training.journal import append_lines, read_lines
from kvpacket_rag.training.samples.domains import Domain
from kvpacket_rag.training.samples.prompts import Question, Questions
from kvpacket_rag.training.samples.sample import contains
from kvpacket_rag.training.teacher import Taught, continue_greedily, teach

__all__ = ["FidelityConfig", "Record", "run"]

RECORDS = "samples.jsonl"


@dataclass(frozen=True)
class FidelityConfig:
    """The settings that all samples of a run share."""

    k: int = 4
    """Number of chunks in a context."""
    chunk_tokens: int = 160
    """Maximum number of tokens in a chunk."""
    max_new_tokens: int = 32
    """Maximum number of tokens in an answer."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("k", "chunk_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")


@dataclass(frozen=True)
class Record:
    """The result of one method on one sample."""

    domain: str
    number: int
    method: str
    identity: str
    """What the method depends on besides its name. Results of another adapter are not reused."""
    question: str
    """Hash of the prompt. Results of another prompt are not reused."""
    kl: float
    top1: float
    f1: float | None
    """None for questions without labels, as are the next two."""
    em: float | None
    contains: float | None
    ttft_s: float
    tokens_computed: float
    """Number of tokens computed in all layers. A token computed in some of the layers counts as a fraction."""
    flops: float
    bytes_per_token: float
    """Stored bytes per chunk token."""
    answer: str


def _answered(model: PacketModel, begun: Begun, taught: Taught, most: int) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the logits [n, vocabulary] at the tokens of the reference's answer, and the method's own greedy answer."""
    filled = begun.context.cache.length
    position = filled + begun.skipped
    forced = taught.answer[:-1]
    logits = begun.logits
    if forced:
        positions = torch.arange(position, position + len(forced))[None]
        rest = model.logits(begun.context.cache, forced, keep=len(forced), positions=positions)[0]
        logits = torch.cat((logits, rest))
    chosen = logits.argmax(-1).tolist()
    same = next((n for n, (a, b) in enumerate(zip(chosen, taught.answer, strict=True)) if a != b), None)
    if same is None:
        return logits, taught.answer
    cache = begun.context.cache.filled(filled + same)
    ids, _ = continue_greedily(model, cache, logits[same], position=position + same, most=most - same)
    return logits, (*taught.answer[:same], *ids)


def _measure(
    model: PacketModel, method: AbstractMethod, question: Question, packets: Sequence[Packet], taught: Taught, most: int
) -> dict[str, object]:
    model.synchronize()
    start = time.perf_counter()
    begun = method.begin(model, question, packets, most + 1)
    int(begun.logits.argmax())
    model.synchronize()
    seconds = time.perf_counter() - start
    logits, ids = _answered(model, begun, taught, most)
    compared = divergence(taught.logits, logits)
    stored = sum(packet.nbytes for packet in packets)
    return {
        "kl": compared.kl,
        "top1": compared.top1,
        "ttft_s": seconds,
        "tokens_computed": sum(p.tokens * (p.layers or model.size.layers) / model.size.layers for p in begun.passes),
        "flops": sum(
            model.size.flops(tokens=p.tokens, keys=p.keys, layers=p.layers, logits=p.logits) for p in begun.passes
        ),
        "bytes_per_token": stored / sum(map(len, question.chunks)) if question.chunks else 0.0,
        "answer": model.text.decode([i for i in ids if i not in model.end_ids]).strip(),
    }


def _sample_records(
    model: PacketModel, domain: Domain, number: int, question: Question, methods: Sequence[AbstractMethod], most: int
) -> Iterator[Record]:
    sample = domain.samples[number]
    taught = teach(model, question, most=most)
    made: dict[str, list[Packet]] = {}
    for method in methods:
        if method.stored not in made:
            made[method.stored] = method.packets(model, question.chunks)
        found = _measure(model, method, question, made[method.stored], taught, most)
        text = str(found["answer"])
        yield Record(
            domain=domain.name,
            number=number,
            method=method.name,
            identity=method.identity,
            question=question.digest,
            f1=f1(text, sample.answers) if sample.answers else None,
            em=exact_match(text, sample.answers) if sample.answers else None,
            contains=contains(text, sample.answers) if sample.answers else None,
            **found,  # type: ignore[arg-type]
        )


def run(
    model: PacketModel,
    domains: Sequence[Domain],
    methods: Sequence[AbstractMethod],
    config: FidelityConfig,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Measure every method on every sample. Results of an equal run that the folder already holds are reused.

    progress: called with (samples done, number of samples). Raises `InputError` if the folder holds a run with other
    settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECORDS
    done = _resume(path, _header(model, domains, config))
    questions = Questions(model, config.chunk_tokens)
    total = sum(len(domain.samples) for domain in domains)
    count = 0
    records = []
    warm: set[str] = set()
    # Domains take turns, so that an interrupted run has results of each.
    fitted: dict[str, list[AbstractMethod]] = {}
    for domain in domains:
        corpus = [questions.cut(text) for text in domain.corpus]
        fitted[domain.name] = [method.for_corpus(corpus) for method in methods]
    for number in range(max((len(domain.samples) for domain in domains), default=0)):
        for domain in domains:
            if number >= len(domain.samples):
                continue
            question = questions.make(domain.samples[number], config.k, f"{config.seed}:{domain.name}:{number}")
            here = (domain.name, number, question.digest)
            have = {(r.method, r.identity): r for r in done.get(here, ())}
            missing = [method for method in fitted[domain.name] if (method.name, method.identity) not in have]
            if missing:
                for method in missing:
                    if method.name not in warm:  # warm-up: kernels and memory are set up only once
                        method.begin(model, question, method.packets(model, question.chunks), config.max_new_tokens)
                        warm.add(method.name)
                # The order is random, so that no method always follows the same other one.
                order = random.Random(question.digest).sample(missing, len(missing))  # noqa: S311
                new = list(_sample_records(model, domain, number, question, order, config.max_new_tokens))
                append_lines(path, [asdict(record) for record in new])
                have |= {(r.method, r.identity): r for r in new}
            records += [have[method.name, method.identity] for method in fitted[domain.name]]
            count += 1
            if progress is not None:
                progress(count, total)
    return records


def _header(model: PacketModel, domains: Sequence[Domain], config: FidelityConfig) -> dict[str, object]:
    fingerprint = model.fingerprint(namespace="bench", anchor=(), storage=str(model.dtype))
    return {
        "model": model.name,
        "weights": fingerprint.weights,
        "compute": fingerprint.compute,
        "versions": versions(),
        "config": asdict(config),
        "sources": {domain.name: domain.source for domain in domains},
    }


def _resume(path: Path, header: dict[str, object]) -> dict[tuple[str, int, str], list[Record]]:
    """Return the records of an earlier run, by domain, number and prompt of the question."""
    first, *others = read_lines(path) or [None]
    if first is None:
        append_lines(path, [header])
        return {}
    for name, value in header.items():
        if first.get(name) != value:
            raise InputError(
                f"{path} holds a run with another {name}: {first.get(name)!r}, not {value!r}. Choose another --out folder."
            )
    found: dict[tuple[str, int, str], list[Record]] = {}
    for line in others:
        record = Record(**line)
        found.setdefault((record.domain, record.number, record.question), []).append(record)
    return found
