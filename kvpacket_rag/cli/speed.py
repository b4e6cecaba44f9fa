"""`kvpacket bench ttft`, `decode`, `build`, `store`, `care`, `load` and `peers`: measure times and sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvpacket_rag.cli.options import DEFAULT_MODEL, Model, StorageName
from kvpacket_rag.cli.output import make_folder
from kvpacket_rag.display.terminal import bar
from kvpacket_rag.errors import InputError

if TYPE_CHECKING:
    from kvpacket_rag.bench.report import Report
    from kvpacket_rag.bench.speed.timing import Progress
    from kvpacket_rag.engine.transformers.packet_model import PacketModel
    from kvpacket_rag.retrieval.embedder import Embedder

__all__ = ["speed_commands"]

speed_commands = typer.Typer()

Shape = Annotated[
    str | None,
    typer.Option(
        help="Random weights of a known shape, such as llama-3.1-8b, instead of a model. Speed does not depend on weights."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; default CUDA if available, otherwise cpu.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for report.json, report.md and report.png.")]
Repeats = Annotated[int, typer.Option(help="Rounds. Each measures every variant once.")]
Embedding = Annotated[str | None, typer.Option(help="Question embedder; none omits this step.")]

DEFAULT_EMBEDDER = "all-minilm-l6-v2"


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} must be numbers separated by commas, such as 512,1024; got {text!r}.") from error


def _embedder(name: str | None) -> Embedder | None:
    from kvpacket_rag.retrieval.embedder import SentenceEmbedder

    return SentenceEmbedder(name) if name and name != "none" else None


def _run(
    folder: Path,
    measure: Callable[[PacketModel, Progress], Report],
    *,
    model: str,
    shape: str | None = None,
    device: str | None = None,
    draws: bool = False,
) -> None:
    """Load a model, measure it with a progress bar, then write and print the report.

    Check first whether the report can be written, because measuring takes long. draws: whether the report has a plot.
    """
    from kvpacket_rag.bench.report import write_report
    from kvpacket_rag.display.plots import check_plots
    from kvpacket_rag.engine.transformers.packet_model import PacketModel
    from kvpacket_rag.engine.transformers.shapes import random_model

    if draws:
        check_plots()
    make_folder(folder)
    loaded = random_model(shape, device=device) if shape else PacketModel.from_pretrained(model, device=device)
    with bar("{task.completed}/{task.total}") as shown:
        task = shown.add_task("Measuring", total=None)
        report = measure(loaded, lambda done, total: shown.update(task, completed=done, total=total))
    sys.stdout.write(write_report(report, folder) + "\n")


@speed_commands.command()
def ttft(
    model: Model = DEFAULT_MODEL,
    shape: Shape = None,
    device: Device = None,
    lengths: Annotated[str, typer.Option(help="Context tokens, separated by commas.")] = "512,1024,2048,4096",
    storage: StorageName = None,
    methods: Annotated[
        str, typer.Option(help="Recomputing methods to compare with, separated by commas, or none.")
    ] = "epic-10,cacheblend-10",
    embedder: Embedding = DEFAULT_EMBEDDER,
    repeats: Repeats = 5,
    out_folder: Out = Path("bench-out/ttft"),
) -> None:
    """Measure the time to first token: full prefill, packets from memory and disk, other methods, and the limit.

    The limit is the question alone.
    """
    from kvpacket_rag.bench.methods.registry import make_methods
    from kvpacket_rag.bench.speed.store import searcher
    from kvpacket_rag.bench.speed.ttft import measure_ttft

    wanted = _numbers(lengths, "--lengths")
    others = make_methods([] if methods == "none" else methods.split(","))
    chosen = _embedder(embedder)

    def measure(loaded: PacketModel, told: Progress) -> Report:
        search = searcher(chosen) if chosen else None
        return measure_ttft(
            loaded, wanted, repeats=repeats, storage=storage, others=others, search=search, progress=told
        )

    _run(out_folder, measure, model=model, shape=shape, device=device, draws=True)


@speed_commands.command()
def decode(
    model: Model = DEFAULT_MODEL,
    shape: Shape = None,
    device: Device = None,
    lengths: Annotated[str, typer.Option(help="Context tokens, separated by commas.")] = "256,1024,2048,4096",
    tokens: Annotated[int, typer.Option(help="Tokens generated each time.")] = 32,
    repeats: Repeats = 5,
    out_folder: Out = Path("bench-out/decode"),
) -> None:
    """Measure seconds per generated token, against `generate` of transformers over the same context."""
    from kvpacket_rag.bench.speed.decode import measure_decode

    wanted = _numbers(lengths, "--lengths")
    _run(
        out_folder, lambda loaded, told: measure_decode(loaded, wanted, tokens=tokens, repeats=repeats, progress=told),
        model=model, shape=shape, device=device, draws=True,
    )  # fmt: skip


@speed_commands.command()
def build(
    model: Model = DEFAULT_MODEL,
    shape: Shape = None,
    device: Device = None,
    lengths: Annotated[str, typer.Option(help="Tokens per chunk, separated by commas.")] = "128,256,512",
    storage: StorageName = None,
    repeats: Repeats = 3,
    out_folder: Out = Path("bench-out/build"),
) -> None:
    """Measure tokens per second of building packets, against a plain batched prefill."""
    from kvpacket_rag.bench.speed.build import measure_build

    wanted = _numbers(lengths, "--lengths")
    _run(
        out_folder, lambda loaded, told: measure_build(loaded, wanted, storage=storage, repeats=repeats, progress=told),
        model=model, shape=shape, device=device,
    )  # fmt: skip


@speed_commands.command()
def store(
    model: Model = DEFAULT_MODEL,
    sizes: Annotated[str, typer.Option(help="Numbers of vectors to search, separated by commas.")] = "1000,100000",
    embedder: Embedding = DEFAULT_EMBEDDER,
    repeats: Repeats = 5,
    out_folder: Out = Path("bench-out/store"),
) -> None:
    """Measure bytes and speed of packets in each number format.

    Also measure the speed of search and opening by number of chunks.
    """
    from kvpacket_rag.bench.speed.store import measure_store

    wanted = _numbers(sizes, "--sizes")
    chosen = _embedder(embedder)
    _run(
        out_folder, lambda loaded, told: measure_store(loaded, wanted, embedder=chosen, repeats=repeats, progress=told),
        model=model,
    )  # fmt: skip


@speed_commands.command()
def care(
    model: Model = DEFAULT_MODEL,
    shape: Shape = None,
    chunks: Annotated[int, typer.Option(help="Chunks of 48 tokens; fewer if longer.", min=100)] = 1000,
    chunk_tokens: Annotated[int, typer.Option(help="Maximum tokens per chunk.")] = 48,
    repeats: Repeats = 3,
    out_folder: Out = Path("bench-out/care"),
) -> None:
    """Measure opening, counting, adding to and verifying a store of many chunks (--shape tiny builds it quickly)."""
    from kvpacket_rag.bench.speed.care import measure_care

    _run(
        out_folder,
        lambda loaded, told: measure_care(loaded, chunks, chunk_tokens=chunk_tokens, repeats=repeats, progress=told),
        model=model, shape=shape,
    )  # fmt: skip


@speed_commands.command()
def load(
    model: Model = DEFAULT_MODEL,
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients, separated by commas.")] = "1,2,4,8",
    questions: Annotated[int, typer.Option(help="Total questions per number of clients.")] = 24,
    out_folder: Out = Path("bench-out/load"),
) -> None:
    """Measure questions per second and times to first token with several concurrent clients."""
    from kvpacket_rag.bench.speed.load import measure_load

    wanted = _numbers(clients, "--clients")
    _run(out_folder, lambda loaded, told: measure_load(loaded, wanted, questions=questions, progress=told), model=model)


@speed_commands.command()
def peers(
    model: Model = DEFAULT_MODEL,
    lengths: Annotated[str, typer.Option(help="Context tokens, separated by commas.")] = "1024,2048,4096",
    gguf: Annotated[
        Path | None, typer.Option(help="GGUF file of the same model; without it, llama.cpp is omitted.")
    ] = None,
    repeats: Repeats = 5,
    out_folder: Out = Path("bench-out/peers"),
) -> None:
    """Compare the time to first token with those of transformers with saved caches and of llama.cpp (extra peers)."""
    from kvpacket_rag.bench.speed.peers import measure_peers

    wanted = _numbers(lengths, "--lengths")
    _run(
        out_folder, lambda loaded, told: measure_peers(loaded, wanted, gguf=gguf, repeats=repeats, progress=told),
        model=model, draws=True,
    )  # fmt: skip
