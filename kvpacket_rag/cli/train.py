"""`kvpacket train`, `adapt` and `tune-anchor`: what makes packets fit one's own documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kvpacket_rag.cli.options import Data, Format, open_store
from kvpacket_rag.cli.output import make_folder
from kvpacket_rag.display.terminal import bar, err, out
from kvpacket_rag.errors import InputError

if TYPE_CHECKING:
    from kvpacket_rag.engine.protocol import Engine
    from kvpacket_rag.training import DistillConfig, Lesson, Progress, Sizes, Trained, Variety


@dataclass(frozen=True)
class Material:
    """What is learned from."""

    model: Engine
    lessons: list[Lesson]
    held_out: list[Lesson]
    data: str


OwnKB = Annotated[
    str | None,
    typer.Argument(metavar="[KB]", help="Knowledge base to train on; or give --data.", show_default=False),
]

RunFolder = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the run, gone on with if it is there; default the adapter's name with .run."),
]

Chunks = Annotated[
    list[int] | None,
    typer.Option(
        "--k",
        help="Number of chunks in a prompt, may be given several times; else 2, 3, 4 and 5.",
        show_default=False,
    ),
]

Parts = Annotated[
    str,
    typer.Option(
        help="Numbers of embeddings: of the anchor, which cost nothing when answering, header, trailer, bridge."
    ),
]

StartName = Annotated[
    str,
    typer.Option(
        help="What embeddings start from: present (the adapter in use, with parts it lacks added), delimiters, closing, mean, random."
    ),
]

Initial = Annotated[
    Path | None,
    typer.Option(
        help="File of an adapter to start from, such as one an earlier run did not offer; judged as if without.",
        show_default=False,
    ),
]


def train(
    kb: OwnKB = None,
    data: Data = None,
    kinds: Format = None,
    model: Annotated[
        str | None, typer.Option(help="Generator, default the knowledge base's, else smollm2-135m-instruct.")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", help="The adapter's file.")] = Path("adapter.safetensors"),
    run_folder: RunFolder = None,
    n: Annotated[int, typer.Option(help="Questions of each kind.")] = 100,
    held_out: Annotated[int, typer.Option(help="More questions of each kind, to choose and judge by.")] = 16,
    chunks: Chunks = None,
    parts: Parts = "anchor=256",
    start: StartName = "present",
    initial: Initial = None,
    anchor: Annotated[str, typer.Option(help="What chunks see in training, without a trained anchor.")] = "passages",
    first_anchor: Annotated[str, typer.Option(help="The same for the chunk that stands first.")] = "opening",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 60,
    batch: Annotated[int, typer.Option(help="Questions of one step.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Highest, as a share of the embeddings' spread.")] = 0.045,
    tail_weight: Annotated[float, typer.Option(help="Weight of the question's tokens in the loss.")] = 0.1,
    unbalanced: Annotated[
        bool, typer.Option("--unbalanced", help="Count all lessons alike; else more, the less their kind diverges.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws questions, distractors and orders.")] = 0,
) -> None:
    """Train an adapter: the model learns to answer from packets as it does from the whole text. No labels are needed.

    With a knowledge base the model writes questions about its chunks. Interrupt at any time and run the same
    command again to go on.
    """
    from kvpacket_rag.display.plots import check_plots
    from kvpacket_rag.packets.anchor import Anchor
    from kvpacket_rag.training import DistillConfig, Start, Variety

    variety = Variety(k=tuple(chunks)) if chunks else Variety()
    if (kb is None) == (not data and not kinds):
        raise InputError("Give either a knowledge base to train on, or --data and --format.")
    config = DistillConfig(
        sizes=_sizes(parts), start=_choice(Start, start, "--start"),
        anchor=_choice(Anchor, anchor, "--anchor"), first_anchor=_choice(Anchor, first_anchor, "--first-anchor"),
        steps=steps, batch=batch, accumulate=_parts(batch), learning_rate=learning_rate, tail_weight=tail_weight,
        balanced=not unbalanced, seed=seed,
    )  # fmt: skip
    folder = run_folder or out_file.with_name(out_file.name + ".run")
    make_folder(folder)
    make_folder(out_file.absolute().parent)
    check_plots()
    if kb is not None:
        material = _from_store(kb, model, n, held_out, variety, seed, folder)
    else:
        material = _from_files(data or [], kinds or [], model, n, held_out, variety, seed)
    _tell(_train(material, config, folder, initial), out_file, folder)


def _train(material: Material, config: DistillConfig, folder: Path, initial: Path | None) -> Trained:
    """Train with a progress bar, and write the report of the run."""
    from kvpacket_rag.packets.adapter import Adapter
    from kvpacket_rag.training.distillation import distill
    from kvpacket_rag.training.report import write_report

    with bar("loss {task.fields[loss]}", "held out {task.fields[held]}", "best {task.fields[best]}") as shown:
        task = shown.add_task("Training", total=config.steps, loss="–", held="–", best="–")

        def show(state: Progress) -> None:
            best = "–" if state.best is None else f"{state.best:.4f}"
            shown.update(task, completed=state.step, loss=f"{state.loss:.4f}", best=best)
            if state.fidelity is not None:
                shown.update(task, held=f"{state.fidelity:.4f}")

        trained = distill(
            material.model, material.lessons, material.held_out, folder, config,
            initial=Adapter.load(initial) if initial else None, data=material.data, progress=show,
        )  # fmt: skip
    write_report(trained, config, folder)
    return trained


def _choice(kind: type[StrEnum], value: str, option: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise InputError(f"{option} must be one of {', '.join(kind)}; got {value!r}.") from error


def _sizes(text: str) -> Sizes:
    """Read numbers of embeddings such as "anchor=256,bridge=8"."""
    from kvpacket_rag.training import Sizes

    try:
        numbers = {name.strip(): int(number) for name, number in (part.split("=") for part in text.split(","))}
        return Sizes(**numbers)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--parts must be like anchor=256,header=4,trailer=4,bridge=8; got {text!r}.") from error


def _parts(batch: int) -> int:
    """Run a batch two lessons at a time, or one if it is odd."""
    return batch // 2 if batch % 2 == 0 else batch


def _from_files(
    data: Sequence[str], kinds: Sequence[str], model: str | None, n: int, held_out: int, variety: Variety, seed: int
) -> Material:
    from kvpacket_rag.engine.loading import load_engine
    from kvpacket_rag.training import draw_lessons
    from kvpacket_rag.training.samples.domains import load_domains

    most = max(variety.k)
    # Of the rows that are not held out for `bench fidelity`, the first are learned from and the last held out here.
    domains = load_domains(data, kinds, n=n + held_out, k=most, split="train", seed=seed)
    loaded = load_engine(model or "smollm2-135m-instruct")
    parts = [domain.divide(held_out) for domain in domains]
    lessons, held = (
        draw_lessons(loaded, [(part[half].name, part[half].samples) for part in parts], variety, seed)
        for half in (0, 1)
    )
    return Material(loaded, lessons, held, "; ".join(f"{domain.name} ({domain.source})" for domain in domains))


def _from_store(
    kb: str, model: str | None, n: int, held_out: int, variety: Variety, seed: int, folder: Path
) -> Material:
    from kvpacket_rag.training import draw_lessons
    from kvpacket_rag.training.samples.domains import Domain
    from kvpacket_rag.training.samples.written import write_samples

    with open_store(kb, model=model, create=False) as store, bar("{task.completed}/{task.total}") as shown:
        task = shown.add_task("Writing questions", total=None)
        samples = write_samples(
            store, n + held_out, max(variety.k), seed, folder / "questions.jsonl",
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
        variety = replace(variety, chunk_tokens=(store.settings.chunk_tokens + 8,))
        halves = Domain("kb", tuple(samples), Path(kb).name).divide(held_out)
        lessons, held_lessons = (draw_lessons(store.model, [("kb", half.samples)], variety, seed) for half in halves)
        return Material(store.model, lessons, held_lessons, f"questions about {store.info().documents} documents")


def _tell(trained: Trained, file: Path, folder: Path) -> None:
    """Print what was won in each domain; write the adapter if the gate let it through."""
    table = Table("held out", "before", "after", "ratio", "difference")
    for name, before in trained.without.items():
        after = trained.best[name]
        table.add_row(
            name,
            f"{before:.4f}",
            f"{after:.4f}",
            f"{after / before:.2f}",
            f"{after - before:+.4f} ± {trained.errors[name]:.4f}",
        )
    out.print(table)
    out.print("KL to full prefill per answer token, nats; differences with their standard errors.")
    if not trained.accepted:
        rejected = folder / "rejected.safetensors"
        trained.adapter.save(rejected)
        err.print(
            f"[yellow]Not offered:[/] it is not better than what it started from, by more than a standard error, in every domain. It is kept as {rejected}."
        )
        raise typer.Exit(1)
    trained.adapter.save(file)
    out.print(f"Written to {file}.")
