"""`kvpacket info`, `verify`, `gc` and `cap`: inspect and maintain a knowledge base."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kvpacket_rag.cli.options import (
    KB,
    AsJson,
    open_store,
)
from kvpacket_rag.cli.output import parse_bytes, print_json, print_verification
from kvpacket_rag.display.terminal import bar, counted, out

if TYPE_CHECKING:
    pass

__all__ = ["cap", "gc", "info", "verify"]


def info(kb: KB, as_json: AsJson = False) -> None:
    """Show the settings and the numbers of documents, chunks, packets, bytes and bytes per token."""
    with open_store(kb, create=False) as store:
        held = store.info()
    if as_json:
        print_json(asdict(held))
        return
    table = Table(show_header=False, box=None)
    for name, value in held.rows:
        table.add_row(name, escape(value))
    out.print(table)


def cap(
    kb: KB,
    size: Annotated[
        str | None,
        typer.Argument(
            help="Such as 500MB, 20GB or 1.5GiB; none lifts the limit; without a size, the command shows it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Limit the bytes of packets.

    The least recently used packets are evicted, and rebuilt when a question needs them.
    """
    with open_store(kb, create=False) as store:
        if size is not None:
            store.max_bytes = None if size.lower() == "none" else parse_bytes(size)
        held = store.info()
    limit = "no limit" if held.max_bytes is None else f"limit {held.max_bytes / 1e6:,.1f} MB"
    out.print(f"{counted(held.packets, 'packet')}, {held.packet_bytes / 1e6:,.1f} MB; {limit}.")


def verify(
    kb: KB,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged or left over, rebuild packets from text.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every stored byte. The exit code is 1 if something is wrong."""
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


def gc(kb: KB) -> None:
    """Remove files and packets that nothing refers to."""
    with open_store(kb, create=False) as store:
        out.print(f"{counted(len(store.collect_garbage()), 'file')} removed.")
