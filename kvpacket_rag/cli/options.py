"""Arguments and options that several commands share, and the function that opens a knowledge base for a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvpacket_rag.store.document_store import DocumentStore

__all__ = [
    "DEFAULT_MODEL",
    "KB",
    "NAMESPACE",
    "AsJson",
    "Blobs",
    "Data",
    "Format",
    "Model",
    "MovedModel",
    "NoHeal",
    "StorageName",
    "open_store",
]


NAMESPACE: ContextVar[str] = ContextVar("namespace", default="default")
"""The value of `--namespace`."""


KB = Annotated[
    str,
    typer.Argument(
        metavar="KB",
        help="Knowledge base: a folder, postgresql://host/name or, read-only, a bundle.",
        show_default=False,
    ),
]


Blobs = Annotated[
    str | None,
    typer.Option(help="Where a new knowledge base stores packets, such as s3://bucket/prefix; default its folder."),
]


MovedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="New path of the model, if its folder has moved.",
        show_default=False,
    ),
]


NoHeal = Annotated[
    bool, typer.Option("--no-heal", help="Fail on a damaged packet instead of rebuilding it from the text.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


StorageName = Annotated[
    str | None,
    typer.Option(help="Number format of packets on disk: float32, bfloat16, float16, int8 (default) or int4."),
]


@contextmanager
def open_store(kb: str, **settings: Any) -> Iterator[DocumentStore]:
    """Open a knowledge base for one command."""
    from kvpacket_rag.store.document_store import DocumentStore

    store = DocumentStore.open(kb, namespace=NAMESPACE.get(), read_only=Path(kb).is_file(), **settings)
    try:
        yield store
    finally:
        store.close()


DEFAULT_MODEL = "smollm2-135m-instruct"


Model = Annotated[str, typer.Option(help="Model: name, Hugging Face id, folder or GGUF file.")]


Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="File of questions, or hf:DATASET:SPLIT; repeatable, each with its --format."),
]


Format = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="squad, nq, musique, hotpotqa or jsonl for a file; biography or needle for synthetic questions, without a file.",
    ),
]
