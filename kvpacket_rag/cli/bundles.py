"""`kvpacket export` and `import`: transfer a knowledge base as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvpacket_rag.cli.options import (
    KB,
    NAMESPACE,
    Blobs,
    open_store,
)
from kvpacket_rag.display.terminal import bar, counted, out

__all__ = ["export_command", "import_command"]


def export_command(
    kb: KB,
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="File to write, such as kb.kvpb.", show_default=False)
    ],
    documents: Annotated[
        list[str] | None, typer.Option("--doc", help="Id of a document to export; repeatable; default all.")
    ] = None,
    since: Annotated[Path | None, typer.Option(help="Earlier bundle: write only what has changed since.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Private ed25519 key (PEM) to sign with (extra sign).")] = None,
) -> None:
    """Write documents with their vectors and packets into one file. No model is needed."""
    with open_store(kb, create=False) as store, bar("{task.completed}/{task.total} packets") as shown:
        task = shown.add_task("Writing", total=None)
        report = store.export(
            bundle, documents=documents, since=since, sign=sign,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    gone = f", {report.removed} to remove on import" if report.removed else ""
    out.print(
        f"{counted(report.documents, 'document')}{gone}, {counted(report.chunks, 'chunk')}, {counted(report.packets, 'packet')}: "
        f"{report.bytes / 1e6:,.1f} MB in {bundle}.",
        markup=False,
    )


def import_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="File written by `kvpacket export`.", show_default=False)
    ],
    kb: KB,
    verify: Annotated[
        Path | None, typer.Option(help="Public ed25519 key (PEM) that must have signed the bundle.")
    ] = None,
    blobs: Blobs = None,
) -> None:
    """Import a bundle: add its documents, or replace those with the same id. No model is needed."""
    from kvpacket_rag.store.bundles.importer import import_bundle

    with bar("{task.percentage:.0f} %") as shown:
        task = shown.add_task("Checking", total=None)
        report = import_bundle(
            bundle, kb, namespace=NAMESPACE.get(), blobs=blobs, verify=verify,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    out.print(
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged, {report.removed} removed; {counted(report.chunks, 'chunk')}, "
        f"{counted(report.packets, 'new packet')}."
    )
