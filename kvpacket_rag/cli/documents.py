"""`kvpacket add`, `ls` and `rm`: add, list and remove documents of a knowledge base."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from kvpacket_rag.cli.options import KB, AsJson, Blobs, StorageName, open_store
from kvpacket_rag.cli.output import print_json
from kvpacket_rag.display.terminal import bar, counted, err, out

__all__ = ["add", "ls", "rm"]


AnchorName = Annotated[
    str | None,
    typer.Option(
        help="What precedes chunks when encoded, in a new knowledge base: trained (default if the model's adapter has an anchor), passages (otherwise), opening or none."
    ),
]


BothPlaces = Annotated[
    bool, typer.Option("--both-places", help="Also build packets for the first place in a context: twice the bytes.")
]


def add(
    kb: KB,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files and folders.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of a new knowledge base: name, Hugging Face id, folder or GGUF file; default smollm2-135m-instruct."
        ),
    ] = None,
    embedder: Annotated[
        str | None, typer.Option(help="Embedder of a new knowledge base; default all-minilm-l6-v2.")
    ] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens per chunk of a new knowledge base; default 256.")
    ] = None,
    anchor: AnchorName = None,
    storage: StorageName = None,
    blobs: Blobs = None,
    both_places: BothPlaces = False,
) -> None:
    """Add new and changed documents (.txt .md .html .pdf .docx .json .jsonl). A missing knowledge base is created."""
    from kvpacket_rag.corpus.readers import find_files
    from kvpacket_rag.events import BuildProgress

    find_files([*paths])  # first, so that a mistyped path does not create an empty knowledge base
    settings = {"chunk_tokens": chunk_tokens, "anchor": anchor, "storage": storage, "blobs": blobs}
    with (
        open_store(kb, model=model, embedder=embedder, **settings) as store,
        bar(
            "{task.fields[chunks]} chunks", "{task.fields[tokens]} tokens", "{task.fields[rate]:.0f} tokens/s"
        ) as shown,
    ):
        task = shown.add_task("Adding", total=None, chunks=0, tokens=0, rate=0.0)

        def show(state: BuildProgress) -> None:
            shown.update(
                task,
                total=state.total,
                completed=state.documents,
                chunks=state.chunks,
                tokens=state.tokens,
                rate=state.tokens / max(state.seconds, 1e-9),
            )

        report = store.add_paths([*paths], progress=show)
        if both_places:
            first = shown.add_task("First place", total=None, chunks=0, tokens=0, rate=0.0)
            store.build_missing(
                0, progress=lambda done, total: shown.update(first, total=total, completed=done, chunks=done)
            )
    out.print(
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged; "
        f"{counted(report.packets_built, 'packet')} of {counted(report.tokens_built, 'token')} built in {report.seconds:.1f} s."
    )
    for path, reason in report.failed:
        err.print(f"[yellow]Not read:[/] {escape(reason if path in reason else f'{path}: {reason}')}")
    if report.failed:
        raise typer.Exit(1)


def ls(kb: KB, as_json: AsJson = False) -> None:
    """List the documents: id, title, characters, chunks."""
    with open_store(kb, create=False) as store:
        documents = store.documents()
    if as_json:
        print_json([asdict(document) for document in documents])
        return
    # Long ids wrap instead of being truncated, because `rm` needs the whole id.
    table = Table(Column("document", overflow="fold"), "title", "characters", "chunks")
    for document in documents:
        table.add_row(escape(document.id), escape(document.title), f"{document.characters:,}", str(document.chunks))
    out.print(table)


def rm(kb: KB, documents: Annotated[list[str], typer.Argument(metavar="DOC...", show_default=False)]) -> None:
    """Remove documents by id (see `ls`), and packets that no other document needs."""
    with open_store(kb, create=False) as store:
        for document in documents:
            store.remove(document)
            out.print(f"Removed {document}.", markup=False)
