"""`kvpacket serve`: serve a knowledge base over HTTP."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer

from kvpacket_rag.cli.options import KB, MovedModel, NoHeal, open_store
from kvpacket_rag.cli.output import parse_bytes
from kvpacket_rag.display.terminal import err
from kvpacket_rag.errors import InputError, require

if TYPE_CHECKING:
    import uvicorn

__all__ = ["listen", "serve"]

SECONDS_TO_FINISH = 10
"""How long answers in progress may take to finish after the server is told to stop."""


def serve(
    kb: KB,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="KVPACKET_API_KEY", help="API key that clients must send.", show_default=False),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Chunks in the context; requests may override this.")] = 4,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum answer tokens; requests may override this.")
    ] = 256,
    concurrent: Annotated[int, typer.Option(min=1, help="Questions answered at a time.")] = 4,
    waiting: Annotated[int, typer.Option(min=0, help="Questions that may wait; the next gets status 429.")] = 64,
    model: MovedModel = None,
    no_heal: NoHeal = False,
    max_body: Annotated[str, typer.Option(help="Maximum request size, such as 32MB.")] = "32MB",
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Site whose pages may use the server, such as http://localhost:3000; repeatable."),
    ] = None,
) -> None:
    """Serve OpenAI's chat API, documents, metrics and a page to try it over HTTP (extra serve)."""
    for module in ("uvicorn", "fastapi", "python_multipart"):
        require(module, extra="serve", purpose="`kvpacket serve`")
    import uvicorn

    from kvpacket_rag.answering.generation import GenerationConfig
    from kvpacket_rag.answering.rag import RAG
    from kvpacket_rag.serve.access import LOOPBACK
    from kvpacket_rag.serve.app import create_app
    from kvpacket_rag.serve.limits import Limits
    from kvpacket_rag.serve.metrics import Metrics

    if api_key is not None and not (api_key.strip() and api_key.isascii()):
        raise InputError("The API key must consist of visible ASCII characters. Choose another key, or leave it out.")
    limits = Limits(concurrent, waiting, parse_bytes(max_body))
    metrics = Metrics()
    with open_store(kb, create=False, model=model, hooks=[metrics], heal=not no_heal) as store:
        err.print("Loading the model …")
        store.load()
        rag = RAG(store, k=k, config=GenerationConfig(max_new_tokens=max_new_tokens))
        hosts = LOOPBACK if host in LOOPBACK else None
        if hosts is None and api_key is None:
            err.print(f"[yellow]Anyone who reaches {host} can read and change the documents. Set --api-key.[/]")
        app = create_app(rag, api_key=api_key, limits=limits, metrics=metrics, hosts=hosts, origins=allow_origin or ())
        listen(
            uvicorn.Server(
                uvicorn.Config(
                    app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_FINISH
                )
            )
        )


def listen(server: uvicorn.Server) -> None:
    """Listen, print the address, and serve until the process is told to stop.

    Raises `InputError` if the server cannot listen on this address.
    """
    host, port = server.config.host, server.config.port
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(
            f"The server cannot listen on {host}:{port}: {error.strerror or error}. Choose another --port or --host."
        ) from error
    with listening:
        found = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        err.print(
            f"Serving on http://{shown}:{found} – the page is at /, OpenAI's API at /v1. Press Ctrl-C to stop.",
            soft_wrap=True,
        )
        server.run(sockets=[listening])
