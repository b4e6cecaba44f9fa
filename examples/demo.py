"""Build a knowledge base from a handbook and ask five questions, each from packets and with full prefill.

    python examples/demo.py [KB]

KB is the folder of the knowledge base, default demo-kb. A second run reuses it.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from kvpacket_rag import RAG, Answer, BuildProgress, DocumentStore, GenerationConfig, PacketModel

CORPUS = Path(__file__).parent / "corpus"
QUESTIONS = [
    "How long does the battery of the Halo 3 last on one charge?",
    "What is the greatest depth of Lake Vessen?",
    "How tall is the weather mast of the Halo 3?",
    "What is the extended warranty plan of the Halo 3 called?",
    "How many requests a minute does the Harbourmaster API allow for each token?",
]


def build(kb: DocumentStore, corpus: Path) -> None:
    """Add the corpus, with a progress bar."""
    columns = (TextColumn("Building packets of documents"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns) as progress:
        task = progress.add_task("", total=None, state="")

        def show(state: BuildProgress) -> None:
            rate = state.tokens / max(state.seconds, 1e-9)
            text = f"{state.chunks} chunks, {state.tokens:,} tokens, {rate:.0f} tokens/s"
            progress.update(task, total=state.total, completed=state.documents, state=text)

        kb.add_paths([corpus], progress=show)
        # Also build packets for the first place in a context, so that no question has to wait for one.
        kb.build_missing(0, progress=lambda done, total: progress.update(task, total=total, completed=done))


def row(answer: Answer) -> list[str]:
    """Return the table cells of one answer."""
    usage = answer.usage
    return [
        answer.method,
        f"{usage.reused:,}",
        f"{usage.computed_tokens:,}",
        f"{answer.timings.first_token:.2f} s",
    ]


def main(folder: str = "demo-kb", model: str = "smollm2-135m-instruct", questions: list[str] = QUESTIONS) -> None:
    """Build the knowledge base, ask the questions, and compare both methods."""
    console = Console(highlight=False)
    console.print(f"Loading {model} (fetched only once) …")
    packet_model = PacketModel.from_pretrained(model)
    with DocumentStore.open(folder, model=packet_model) as kb:
        build(kb, CORPUS)
        kb.load()
        info = kb.info()
        console.print(
            f"{info.documents} documents, {info.packets} packets of {info.packet_tokens:,} tokens, "
            f"{info.packet_bytes / 1e6:,.0f} MB in {folder}\n"
        )
        rag = RAG(kb, config=GenerationConfig(max_new_tokens=48))
        rag.ask("Warm up.")
        ratios = []
        for question in questions:
            packet, full = rag.ask(question), rag.ask(question, method="full")
            table = Table("method", "tokens reused", "tokens computed", "first token after")
            table.add_row(*row(packet))
            table.add_row(*row(full))
            console.rule(f"[bold]{question}")
            console.print(f"from packets:      [bold green]{packet.text}")
            console.print(f"with full prefill: [green]{full.text}")
            for hit in packet.sources:
                console.print(
                    f"  {hit.chunk.document} (part {hit.chunk.ordinal + 1}, score {hit.score:.2f})", style="dim"
                )
            console.print(table)
            ratios.append(full.timings.first_token / packet.timings.first_token)
        console.rule()
        console.print(
            f"The first token comes {min(ratios):.1f} to {max(ratios):.1f} times faster than with full prefill. Both include search."
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
