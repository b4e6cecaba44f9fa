"""`kvpacket adapt` and `tune-anchor`: change the adapter or the anchor with which packets are built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvpacket_rag.cli.options import KB, open_store
from kvpacket_rag.display.terminal import bar, counted, out

__all__ = ["adapt", "tune"]


def adapt(
    kb: KB,
    adapter: Annotated[
        Path, typer.Argument(metavar="ADAPTER", help="File written by `kvpacket train`.", show_default=False)
    ],
) -> None:
    """Copy a trained adapter into a knowledge base, use it from now on, and rebuild the packets."""
    from kvpacket_rag.packets.adapter import Adapter

    loaded = Adapter.load(adapter)
    with open_store(kb, create=False) as store, bar("{task.completed}/{task.total} packets") as shown:
        task = shown.add_task("Building", total=None)
        store.remake(adapter=loaded, progress=lambda done, total: shown.update(task, completed=done, total=total))
        out.print(f"{kb} now uses {adapter} (training data: {loaded.card.data or 'not recorded'}).", markup=False)


def tune(
    kb: KB,
    n: Annotated[int, typer.Option(help="Questions, which the model writes about the documents.")] = 16,
    k: Annotated[int, typer.Option(help="Chunks per context.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed for chunks and passages.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only.")] = False,
) -> None:
    """Try a few anchors on questions that the model writes, keep the best, and rebuild the packets."""
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
        out.print(
            f"Best on {counted(report.questions, 'question')}: {report.best.name}{' (not changed)' if dry_run else ''}."
        )
        if report.best.texts and not dry_run:
            out.print("The settings of the knowledge base keep its passages, even after their documents are removed.")
