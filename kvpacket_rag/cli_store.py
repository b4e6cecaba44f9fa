"""`kvpacket info`, `verify`, `gc`, `cap`, `export` and `import`: looking after a knowledge base, and handing it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kvpacket_rag.terminal import bar, out, parse_bytes, print_json, print_verification

if TYPE_CHECKING:
    from kvpacket_rag.documents import DocumentStore

__all__ = ["KB", "NAMESPACE", "AsJson", "Blobs", "StorageName", "care", "open_store"]

care = typer.Typer()
NAMESPACE: ContextVar[str] = ContextVar("namespace", default="default")
"""What `--namespace` says."""

KB = Annotated[
    str,
    typer.Argument(
        metavar="KB",
        help="Knowledge base: a folder, postgresql://host/name, or (to read only) a bundle.",
        show_default=False,
    ),
]
Blobs = Annotated[
    str | None,
    typer.Option(help="Where packets of a new knowledge base lie, such as s3://bucket/prefix; default its folder."),
]
MovedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Where the generator of the knowledge base lies now, if its folder has moved.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorageName = Annotated[
    str | None,
    typer.Option(help="Number format of packets on disk: float32, bfloat16, float16, int8 or int4; default int8."),
]


@contextmanager
def open_store(kb: str, **settings: Any) -> Iterator[DocumentStore]:
    """Open a knowledge base for one command."""
    from kvpacket_rag.documents import DocumentStore

    store = DocumentStore.open(kb, namespace=NAMESPACE.get(), read_only=Path(kb).is_file(), **settings)
    try:
        yield store
    finally:
        store.close()


@care.command()
def info(kb: KB, as_json: AsJson = False) -> None:
    """Say what the knowledge base holds."""
    from kvpacket_rag.display import store_rows

    with open_store(kb, create=False) as store:
        held = store.info()
    if as_json:
        print_json(asdict(held))
        return
    table = Table(show_header=False, box=None)
    for name, value in store_rows(held):
        table.add_row(name, escape(value))
    out.print(table)


@care.command()
def cap(
    kb: KB,
    size: Annotated[
        str | None,
        typer.Argument(help="Such as 500MB or 20GB; none lifts the limit. Shown if left out.", show_default=False),
    ] = None,
) -> None:
    """Limit the bytes of packets: those unused for longest go, and are built again when a question needs them."""
    with open_store(kb, create=False) as store:
        if size is not None:
            store.max_bytes = None if size.lower() == "none" else parse_bytes(size)
        held = store.info()
    limit = "no limit" if held.max_bytes is None else f"limit {held.max_bytes / 1e6:,.1f} MB"
    out.print(f"{held.packets:,} packets, {held.packet_bytes / 1e6:,.1f} MB; {limit}.")


@care.command()
def verify(
    kb: KB,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged or left over, rebuild packets from their text.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every stored byte. Exit code 1 if something is wrong."""
    with open_store(kb, create=False) as store, bar("{task.completed}/{task.total} packets") as shown:
        task = shown.add_task("Verifying", total=None)
        report = store.verify(
            repair=repair, progress=lambda done, total: shown.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(report.to_json())
    else:
        print_verification(report)
    if not report.clean:
        raise typer.Exit(1)


@care.command()
def gc(kb: KB) -> None:
    """Remove files and packets that nothing refers to."""
    with open_store(kb, create=False) as store:
        out.print(f"{len(store.collect_garbage())} files removed.")


@care.command("export")
def export_command(
    kb: KB,
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="File to write, such as kb.kvpb.", show_default=False)
    ],
    documents: Annotated[
        list[str] | None, typer.Option("--doc", help="Id of a document; several times for more. Default all.")
    ] = None,
    since: Annotated[Path | None, typer.Option(help="An earlier bundle: write what has changed since only.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Private ed25519 key (PEM) to sign the bundle with.")] = None,
) -> None:
    """Write documents with their vectors and packets into one file, to be taken in elsewhere."""
    with open_store(kb, create=False) as store, bar("{task.completed}/{task.total} packets") as shown:
        task = shown.add_task("Writing", total=None)
        report = store.export(
            bundle, documents=documents, since=since, sign=sign,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    gone = f", {report.removed} to be removed" if report.removed else ""
    out.print(
        f"{report.documents} documents{gone}, {report.chunks} chunks, {report.packets} packets: "
        f"{report.bytes / 1e6:,.1f} MB in {bundle}.",
        markup=False,
    )


@care.command("import")
def import_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="File written by `kvpacket export`.", show_default=False)
    ],
    kb: KB,
    verify: Annotated[
        Path | None, typer.Option(help="Public ed25519 key (PEM) the bundle must have been signed with.")
    ] = None,
    blobs: Blobs = None,
) -> None:
    """Take a bundle in: its documents are added, or replace those of the same id. Needs no model."""
    from kvpacket_rag.importing import import_bundle

    with bar("{task.percentage:.0f} %") as shown:
        task = shown.add_task("Checking", total=None)
        report = import_bundle(
            bundle, kb, namespace=NAMESPACE.get(), blobs=blobs, verify=verify,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    out.print(
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged, {report.removed} removed; {report.chunks} chunks, "
        f"{report.packets} new packets."
    )
