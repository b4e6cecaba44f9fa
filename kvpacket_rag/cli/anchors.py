"""`kvpacket adapt` and `tune-anchor`: change what the packets of a knowledge base are built with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvpacket_rag.cli.options import KB, open_store
from kvpacket_rag.display.terminal import bar, out

__all__ = ["adapt", "tune"]


def adapt(
    kb: KB,
    adapter: Annotated[
        Path, typer.Argument(metavar="ADAPTER", help="File written by `kvpacket train`.", show_default=False)
    ],
) -> None:
    """Use a trained adapter in a knowledge base from now on: it is copied there, and the packets are made anew."""
    from kvpacket_rag.packets.adapter import Adapter

    loaded = Adapter.load(adapter)
    with open_store(kb, create=False) as store, bar("{task.completed}/{task.total} packets") as shown:
        task = shown.add_task("Building", total=None)
        store.remake(adapter=loaded, progress=lambda done, total: shown.update(task, completed=done, total=total))
        out.print(f"{kb} uses {adapter} ({loaded.card.data or 'no training data named'}).", markup=False)


def tune(
    kb: KB,
    n: Annotated[int, typer.Option(help="Questions, written by the model about the documents.")] = 16,
    k: Annotated[int, typer.Option(help="Chunks in a context.")] = 4,
    seed: Annotated[int, typer.Option(help="Draws chunks and passages.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only.")] = False,
) -> None:
    """Choose what chunks see when their packets are made: try a few anchors, keep the best, make the packets anew."""
    from kvpacket_rag.bench.anchor_tuning import candidates, tune_anchor
    from kvpacket_rag.engine.anchors import anchor_ids
    from kvpacket_rag.training.samples.written import write_samples

    with open_store(kb, create=False) as store:
        with bar("{task.completed}/{task.total}") as shown:
            writing, measuring, building = (
                shown.add_task(what, total=None, visible=False)
                for what in ("Writing questions", "Measuring", "Building")
            )

            def show(task: Any) -> Callable[[int, int], None]:
                return lambda done, total: shown.update(task, completed=done, total=total, visible=True)

            samples = write_samples(store, n, k, seed, (store.folder or Path()) / "questions.jsonl", show(writing))
            tried = candidates(store, seed)
            report = tune_anchor(store, samples, tried, show(measuring))
            if not dry_run:
                store.remake(report.best.anchor, texts=report.best.texts, progress=show(building))
        table = Table("anchor", "KL to full prefill (95 % interval)", "tokens")
        for candidate in tried:
            kl = report.kl[candidate.name]
            tokens = len(anchor_ids(store.model, candidate.anchor, candidate.texts))
            table.add_row(candidate.name, f"{kl.mean:.4f} ({kl.low:.4f}–{kl.high:.4f})", str(tokens))
        out.print(table)
        out.print(f"Best on {report.questions} questions: {report.best.name}{' (not changed)' if dry_run else ''}.")
        if report.best.texts and not dry_run:
            out.print("Its passages stay in the settings of the knowledge base, also when their documents are removed.")
