"""Questions about documents that the model itself writes, so that training needs no data besides a corpus."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from kvpacket_rag.answering.generation import GenerationConfig, generate
from kvpacket_rag.corpus.document import Chunk
from kvpacket_rag.engine.assembly import prefill
from kvpacket_rag.engine.chat import PromptStyle
from kvpacket_rag.engine.protocol import Engine
from kvpacket_rag.errors import InputError
from kvpacket_rag.store.document_store import DocumentStore
from kvpacket_rag.training.journal import append_lines, read_lines
from kvpacket_rag.training.samples.sample import Sample

__all__ = ["write_question", "write_samples"]

STYLE = PromptStyle(
    system="You write short questions about texts.",
    closing="Write one question that the text above answers. Give the question only.\n",
)
TOPICS = ("a name", "a number", "a place", "a reason", "a time", "how something is done", "what something is", "a rule")
"""What questions should be about. The topics take turns, so that the questions differ."""


def write_question(model: Engine, chunk: Sequence[int], topic: str, seed: int) -> str:
    """Let the model write a one-line question about a chunk of token ids. The text is empty if it wrote none."""
    prompt = model.text.prompt(f"It should ask about {topic}.", style=STYLE)
    config = GenerationConfig(max_new_tokens=40, temperature=0.7, top_p=0.9, seed=seed, stop=("\n\n",))
    context, logits = prefill(model, prompt.prefix, [chunk], prompt.tail, room=config.max_new_tokens)
    text = "".join(piece.text for piece in generate(model, context, logits, config))
    lines = [line.strip(' "*') for line in text.strip().splitlines()]
    return next((line for line in lines if line.endswith("?")), "")


def write_samples(
    store: DocumentStore,
    n: int,
    k: int,
    seed: int,
    file: Path,
    progress: Callable[[int, int], None] | None = None,
) -> list[Sample]:
    """Let the model write up to `n` questions about chunks of a store, each with the `k` chunks that a search finds.

    The chunk that it is about is always among them. Chunks are drawn at random, each as often as any other.
    A sample's row is the number of its chunk. Questions are stored in `file` as JSON lines and are not written again.
    Raises `InputError` for an empty store, and if the model wrote no question at all.
    """
    chunks = store.chunks()
    if not chunks:
        raise InputError("The knowledge base holds no documents to train on; add some first.")
    rng = random.Random(seed)  # noqa: S311 - a draw that can be repeated
    order = [number for _ in range(-(-n // len(chunks))) for number in rng.sample(range(len(chunks)), len(chunks))]
    known: dict[str, str] = {row["key"]: row["question"] for row in read_lines(file)}
    samples: list[Sample] = []
    for done, number in enumerate(order[:n]):
        chunk, topic = chunks[number], TOPICS[done % len(TOPICS)]
        key = f"{seed}:{done}:{chunk.id}"
        if key not in known:
            known[key] = write_question(store.model, chunk.token_ids, topic, seed + done)
            append_lines(file, [{"key": key, "question": known[key]}])
        if known[key]:
            samples.append(_sample(store, known[key], chunk, number, k))
        if progress is not None:
            progress(done + 1, n)
    if not samples:
        raise InputError(f"The model wrote no question about any of {n} chunks; ask for more questions.")
    return samples


def _sample(store: DocumentStore, question: str, chunk: Chunk, row: int, k: int) -> Sample:
    found = [hit.chunk.text for hit in store.search(question, k=k)]
    passages = (chunk.text, *(text for text in found if text != chunk.text))
    return Sample(question, (), passages[:k], row, complete=True)
