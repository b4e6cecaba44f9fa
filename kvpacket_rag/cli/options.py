"""Arguments and options that several commands share, and how a command opens its knowledge base."""

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
    "StorageName",
    "open_store",
]


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
    from kvpacket_rag.store.document_store import DocumentStore

    store = DocumentStore.open(kb, namespace=NAMESPACE.get(), read_only=Path(kb).is_file(), **settings)
    try:
        yield store
    finally:
        store.close()


DEFAULT_MODEL = "smollm2-135m-instruct"


Model = Annotated[str, typer.Option(help="Generator: name, Hugging Face id, folder or GGUF file.")]


Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", help="File of questions, or hf:DATASET:SPLIT; may be given several times, each with its --format."
    ),
]


Format = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="squad, nq, musique, hotpotqa or jsonl for a file; biography or needle for made-up questions, without a file.",
    ),
]
