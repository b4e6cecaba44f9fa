"""`kvpacket bench fidelity`: compare packets and other methods with full prefill."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvpacket_rag.cli.options import (
    DEFAULT_MODEL,
    Data,
    Format,
    Model,
)
from kvpacket_rag.cli.output import make_folder
from kvpacket_rag.display.terminal import bar, err

bench = typer.Typer(help="Measure fidelity, times and sizes on this machine.", no_args_is_help=True)


@bench.command()
def fidelity(
    data: Data = None,
    kinds: Format = None,
    model: Model = DEFAULT_MODEL,
    methods: Annotated[
        str, typer.Option(help="core, all, or names separated by commas, such as full,anchored,epic-30.")
    ] = "core",
    k: Annotated[int, typer.Option(help="Chunks per context.")] = 4,
    n: Annotated[int, typer.Option(help="Questions per kind.")] = 100,
    chunk_tokens: Annotated[int, typer.Option(help="Maximum tokens per chunk.")] = 160,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum answer tokens.")] = 32,
    split: Annotated[
        str, typer.Option(help="Rows of the files: test (every third), train (the others) or all.")
    ] = "test",
    seed: Annotated[int, typer.Option(help="Seed for questions, distractors and orders.")] = 0,
    adapter: Annotated[Path | None, typer.Option(help="Adapter of the method packet; default the package's.")] = None,
    paper_adapter: Annotated[
        Path | None, typer.Option(help="Adapter of the method paper; default the package's.")
    ] = None,
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the reports; a run with equal settings is resumed.")
    ] = Path("bench-out/fidelity"),
) -> None:
    """Compare methods with full prefill: divergence, F1, time to first token, work and bytes."""
    from kvpacket_rag.bench.fidelity import FidelityConfig, run
    from kvpacket_rag.bench.fidelity_report import summarise, write_report
    from kvpacket_rag.bench.methods.registry import make_methods
    from kvpacket_rag.display.plots import check_plots
    from kvpacket_rag.engine.transformers.packet_model import PacketModel
    from kvpacket_rag.packets.adapter import Adapter, shipped_adapter
    from kvpacket_rag.training.samples.domains import load_domains

    check_plots()
    config = FidelityConfig(k=k, chunk_tokens=chunk_tokens, max_new_tokens=max_new_tokens, seed=seed)
    domains = load_domains(data or [], kinds or ["biography", "needle"], n=n, k=k, split=split, seed=seed)
    make_folder(out_folder)
    loaded = PacketModel.from_pretrained(model, adapter=None)
    chosen = make_methods(
        methods.split(","),
        packet=Adapter.load(adapter) if adapter else shipped_adapter(loaded.adapter_identity),
        paper=Adapter.load(paper_adapter) if paper_adapter else shipped_adapter(loaded.adapter_identity, "paper"),
    )
    _tell_left_out(methods, {method.name for method in chosen}, loaded.name)
    with bar("{task.completed}/{task.total} questions") as shown:
        task = shown.add_task("Measuring", total=None)
        records = run(
            loaded,
            domains,
            chosen,
            config,
            out_folder,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    sys.stdout.write(write_report(summarise(records, loaded, domains, config), out_folder) + "\n")


def _tell_left_out(wanted: str, chosen: set[str], model: str) -> None:
    """Print which requested methods are left out because the model has no adapter for them."""
    for name in sorted({"packet", "paper"} - chosen):
        if {"core", "all"} & set(wanted.split(",")):
            err.print(
                f"Left out: {name}, because {model} has no adapter for it. Give one with --adapter or --paper-adapter."
            )
