"""`kvpacket train`: train an adapter on a knowledge base or on files of questions."""

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
    """The model, the lessons to train on, the lessons held out, and a description of the data."""

    model: Engine
    lessons: list[Lesson]
    held_out: list[Lesson]
    data: str


OwnKB = Annotated[
    str | None,
    typer.Argument(
        metavar="[KB]", help="Knowledge base to train on; otherwise give --data and --format.", show_default=False
    ),
]

RunFolder = Annotated[
    Path | None,
    typer.Option("--run", help="Run folder, resumed if it exists; default the adapter's name with .run."),
]

Chunks = Annotated[
    list[int] | None,
    typer.Option(
        "--k",
        help="Chunks per prompt; repeatable; default 2, 3, 4 and 5.",
        show_default=False,
    ),
]

Parts = Annotated[
    str,
    typer.Option(help="Numbers of embeddings: anchor (costs nothing when answering), header, trailer, bridge."),
]

StartName = Annotated[
    str,
    typer.Option(
        help="Initial embeddings: present (the adapter in use, with missing parts added), delimiters, closing, mean, random."
    ),
]

Initial = Annotated[
    Path | None,
    typer.Option(
        help="Adapter file to start from, such as a rejected one; judged against the model without it.",
        show_default=False,
    ),
]


Unbalanced = Annotated[
    bool,
    typer.Option(
        "--unbalanced",
        help="Weight all questions equally; otherwise kinds with low initial divergence weigh more, so that all gain alike.",
    ),
]


def train(
    kb: OwnKB = None,
    data: Data = None,
    kinds: Format = None,
    model: Annotated[
        str | None, typer.Option(help="Model; default the knowledge base's, or smollm2-135m-instruct.")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", help="Adapter file.")] = Path("adapter.safetensors"),
    run_folder: RunFolder = None,
    n: Annotated[int, typer.Option(help="Questions per kind.")] = 100,
    held_out: Annotated[int, typer.Option(help="Further questions per kind, held out to select and judge.")] = 16,
    chunks: Chunks = None,
    parts: Parts = "anchor=256",
    start: StartName = "present",
    initial: Initial = None,
    anchor: Annotated[
        str, typer.Option(help="What precedes chunks in training, without a trained anchor.")
    ] = "passages",
    first_anchor: Annotated[str, typer.Option(help="The same for the first chunk.")] = "opening",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 60,
    batch: Annotated[int, typer.Option(help="Questions per step.")] = 8,
    learning_rate: Annotated[
        float, typer.Option(help="Maximum, as a share of the spread of the model's embeddings.")
    ] = 0.045,
    tail_weight: Annotated[float, typer.Option(help="Loss weight of the question's tokens.")] = 0.1,
    unbalanced: Unbalanced = False,
    seed: Annotated[int, typer.Option(help="Seed for questions, distractors and orders.")] = 0,
) -> None:
    """Train an adapter, so that the model answers from packets as it does from the whole text. No labels are needed.

    With a knowledge base, the model writes questions about its chunks. You can interrupt a run at any time. Run the
    same command again to resume.
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
    """Parse numbers of embeddings such as "anchor=256,bridge=8"."""
    from kvpacket_rag.training import Sizes

    try:
        numbers = {name.strip(): int(number) for name, number in (part.split("=") for part in text.split(","))}
        return Sizes(**numbers)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--parts must be like anchor=256,header=4,trailer=4,bridge=8; got {text!r}.") from error


def _parts(batch: int) -> int:
    """Return in how many passes a batch runs: two lessons per pass, or one lesson if the batch is odd."""
    return batch // 2 if batch % 2 == 0 else batch


def _from_files(
    data: Sequence[str], kinds: Sequence[str], model: str | None, n: int, held_out: int, variety: Variety, seed: int
) -> Material:
    from kvpacket_rag.engine.loading import load_engine
    from kvpacket_rag.training import draw_lessons
    from kvpacket_rag.training.samples.domains import load_domains

    most = max(variety.k)
    # `bench fidelity` tests on the other rows. Of these rows, the first are for training and the last are held out.
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
    """Print the divergence before and after training in each domain. Write the adapter if the gate accepts it."""
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
    out.print(
        "KL divergence from full prefill per answer token, in nats. Differences are shown with their standard errors."
    )
    if not trained.accepted:
        rejected = folder / "rejected.safetensors"
        trained.adapter.save(rejected)
        err.print(
            f"[yellow]Rejected:[/] an adapter must be better than its starting point by more than one standard error in every domain, and this one is not. It is kept as {rejected}."
        )
        raise typer.Exit(1)
    trained.adapter.save(file)
    out.print(f"Written to {file}.")
