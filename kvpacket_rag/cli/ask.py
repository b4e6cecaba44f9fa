"""`kvpacket ask`: answer a question from a knowledge base."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from kvpacket_rag.cli.options import KB, AsJson, MovedModel, NoHeal, open_store
from kvpacket_rag.cli.output import parse_filter, print_answer, print_json

__all__ = ["ask"]


class MethodName(StrEnum):
    """How the states of the context are obtained: from packets or by a full prefill."""

    PACKET = "packet"
    FULL = "full"


def ask(
    kb: KB,
    question: Annotated[str, typer.Argument(show_default=False)],
    k: Annotated[int, typer.Option(help="Chunks in the context.")] = 4,
    method: Annotated[MethodName, typer.Option(help="packet, or full for a full prefill.")] = MethodName.PACKET,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum answer tokens.")] = 128,
    filter: Annotated[
        str | None,
        typer.Option(help="""Conditions on metadata, as JSON: '{"year": {"$gte": 2021}}'.""", show_default=False),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(help="Lowest score of a chunk in the context, from -1 to 1.", show_default=False)
    ] = None,
    model: MovedModel = None,
    no_heal: NoHeal = False,
    as_json: AsJson = False,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Only print what the model sees, with packets marked.")
    ] = False,
) -> None:
    """Answer a question from the documents, with sources and cost."""
    from kvpacket_rag.answering.generation import GenerationConfig
    from kvpacket_rag.answering.rag import RAG

    conditions = None if filter is None else parse_filter(filter)
    with open_store(kb, create=False, model=model, heal=not no_heal) as store:
        rag = RAG(store, k=k, config=GenerationConfig(max_new_tokens=max_new_tokens), min_score=min_score)
        if show_prompt:
            sys.stdout.write(rag.show_prompt(question, filter=conditions) + "\n")
            return
        store.load()
        with rag.stream(question, method=method.value, filter=conditions) as stream:
            for text in stream:
                if not as_json:
                    sys.stdout.write(text)
                    sys.stdout.flush()
        answer = stream.answer
    if as_json:
        print_json(answer.to_json())
    else:
        sys.stdout.write("\n\n")
        print_answer(answer)
