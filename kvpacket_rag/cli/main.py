"""The `kvpacket` command. Heavy imports happen inside the commands, so that help texts and errors appear at once."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.markup import escape

from kvpacket_rag import __version__
from kvpacket_rag.cli.anchors import adapt, tune
from kvpacket_rag.cli.ask import ask
from kvpacket_rag.cli.bundles import export_command, import_command
from kvpacket_rag.cli.documents import add, ls, rm
from kvpacket_rag.cli.fidelity import bench
from kvpacket_rag.cli.models import models
from kvpacket_rag.cli.options import NAMESPACE
from kvpacket_rag.cli.serve import serve
from kvpacket_rag.cli.speed import speed_commands
from kvpacket_rag.cli.store import cap, gc, info, verify
from kvpacket_rag.cli.train import train
from kvpacket_rag.display.terminal import err, out
from kvpacket_rag.errors import KVPacketError

app = typer.Typer(
    help="Answer questions about your documents from stored key/value packets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "add": add, "ask": ask, "ls": ls, "rm": rm, "models": models, "info": info, "cap": cap, "verify": verify, "gc": gc,
    "export": export_command, "import": import_command, "serve": serve, "train": train, "adapt": adapt, "tune-anchor": tune,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(command)
bench.add_typer(speed_commands)
app.add_typer(bench, name="bench")

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Run the command. An error of this package becomes one line on standard error and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the encoding of a pipe may lack some characters
            stream.reconfigure(errors="replace")
    try:
        app()
    except KVPacketError as error:
        err.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("Interrupted. Finished work is kept; run the same command again to resume.")
        raise


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    namespace: Annotated[
        str,
        typer.Option(
            envvar="KVPACKET_NAMESPACE", help="Namespace, given before the command; namespaces share nothing."
        ),
    ] = "default",
) -> None:
    """Answer questions about your documents from stored key/value packets."""
    NAMESPACE.set(namespace)
    if version:
        out.print(__version__)
        raise typer.Exit
