"""The `kvpacket` command. Heavy imports happen inside the commands, so that help and errors come at once."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from kvpacket_rag import __version__
from kvpacket_rag.cli_bench import bench
from kvpacket_rag.cli_serve import serving
from kvpacket_rag.cli_speed import speed
from kvpacket_rag.cli_store import KB, NAMESPACE, AsJson, Blobs, MovedModel, StorageName, care, open_store
from kvpacket_rag.cli_train import train
from kvpacket_rag.errors import KVPacketError
from kvpacket_rag.terminal import answer_json, bar, err, out, print_answer, print_json

app = typer.Typer(
    help="Answer questions about your documents from stored key/value packets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench.add_typer(speed)
app.add_typer(bench, name="bench")
app.add_typer(care)
app.add_typer(serving)
app.add_typer(train)

AnchorName = Annotated[
    str | None,
    typer.Option(
        help="What chunks see when encoded: trained (default where the model has an adapter with an anchor), passages, opening or none."
    ),
]
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class MethodName(StrEnum):
    """How the context is made."""

    PACKET = "packet"
    FULL = "full"


def main() -> None:
    """Run the command; errors of this package become one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a pipe may have an encoding that cannot hold every text
            stream.reconfigure(errors="replace")
    try:
        app()
    except KVPacketError as error:
        err.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("Interrupted. What was finished is kept; run the same command again to go on.")
        raise


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    namespace: Annotated[
        str,
        typer.Option(
            envvar="KVPACKET_NAMESPACE", help="Which of the knowledge bases at one place; they share nothing."
        ),
    ] = "default",
) -> None:
    """Answer questions about your documents from stored key/value packets."""
    NAMESPACE.set(namespace)
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def add(
    kb: KB,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files and folders.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="Generator of a new knowledge base: name, Hugging Face id, folder or GGUF file.")
    ] = None,
    embedder: Annotated[str | None, typer.Option(help="Embedder of a new knowledge base.")] = None,
    chunk_tokens: Annotated[int | None, typer.Option(help="Most tokens of a chunk, default 256.")] = None,
    anchor: AnchorName = None,
    storage: StorageName = None,
    blobs: Blobs = None,
    both_places: Annotated[
        bool,
        typer.Option(
            "--both-places", help="Build the packets for the first place in a context as well: twice the bytes."
        ),
    ] = False,
) -> None:
    """Add documents (.txt .md .html .pdf .docx .json .jsonl), or update those that changed."""
    from kvpacket_rag.readers import find_files
    from kvpacket_rag.tally import BuildProgress

    find_files([*paths])  # a mistyped path makes no empty knowledge base
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
        f"{report.packets_built} packets of {report.tokens_built} tokens built in {report.seconds:.1f} s."
    )
    for path, reason in report.failed:
        err.print(f"[yellow]Not read:[/] {escape(reason if path in reason else f'{path}: {reason}')}")
    if report.failed:
        raise typer.Exit(1)


@app.command()
def ask(
    kb: KB,
    question: Annotated[str, typer.Argument(show_default=False)],
    k: Annotated[int, typer.Option(help="Chunks in the context.")] = 4,
    method: Annotated[MethodName, typer.Option(help="packet, or full prefill for comparison.")] = MethodName.PACKET,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 128,
    model: MovedModel = None,
    as_json: AsJson = False,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print what the model sees, packets marked, and stop.")
    ] = False,
) -> None:
    """Answer a question from the documents."""
    from kvpacket_rag.generator import GenerationConfig
    from kvpacket_rag.rag import RAG

    with open_store(kb, create=False, model=model) as store:
        rag = RAG(store, k=k, config=GenerationConfig(max_new_tokens=max_new_tokens))
        if show_prompt:
            sys.stdout.write(rag.show_prompt(question) + "\n")
            return
        store.load()
        with rag.stream(question, method=method.value) as stream:
            for text in stream:
                if not as_json:
                    sys.stdout.write(text)
                    sys.stdout.flush()
        answer = stream.answer
    if as_json:
        print_json(answer_json(answer))
    else:
        sys.stdout.write("\n\n")
        print_answer(answer)


@app.command()
def ls(kb: KB, as_json: AsJson = False) -> None:
    """List the documents."""
    with open_store(kb, create=False) as store:
        documents = store.documents()
    if as_json:
        print_json([asdict(document) for document in documents])
        return
    # Ids are folded, not cut: `rm` needs them whole.
    table = Table(Column("document", overflow="fold"), "title", "characters", "chunks")
    for document in documents:
        table.add_row(escape(document.id), escape(document.title), f"{document.characters:,}", str(document.chunks))
    out.print(table)


@app.command()
def rm(kb: KB, documents: Annotated[list[str], typer.Argument(metavar="DOC...", show_default=False)]) -> None:
    """Remove documents by id, as `ls` lists them."""
    with open_store(kb, create=False) as store:
        for document in documents:
            store.remove(document)
            out.print(f"Removed {document}.", markup=False)


@app.command()
def models() -> None:
    """List the models known by name; any Hugging Face id, folder or GGUF file works as well."""
    from kvpacket_rag.catalogue import CATALOGUE
    from kvpacket_rag.settings import Settings

    table = Table("name", "kind", "what", "fetched")
    for entry in CATALOGUE.values():
        table.add_row(
            entry.name, entry.kind, entry.about, "yes" if (Settings().model_folder / entry.name).exists() else "no"
        )
    out.print(table)
