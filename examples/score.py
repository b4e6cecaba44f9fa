"""Ask the 40 questions about the handbook, from packets and with full prefill, and count the correct answers.

    python examples/score.py [KB] [MODEL]

An answer is correct if it contains the expected fact. KB is the folder of the knowledge base, default demo-kb. It is
built if it does not exist.
"""

import json
import re
import sys
from pathlib import Path

from rich.console import Console

from kvpacket_rag import RAG, DocumentStore, GenerationConfig

EXAMPLES = Path(__file__).parent


def words(text: str) -> str:
    """Return only the lower-case words and numbers, so that punctuation does not count."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def main(folder: str = "demo-kb", model: str | None = None, most: int | None = None) -> dict[str, int]:
    """Ask the questions, print which methods answer each one correctly, and return the counts."""
    console = Console(highlight=False)
    lines = (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()[:most]
    right = {"packet": 0, "full": 0}
    with DocumentStore.open(folder, model=model) as kb:
        kb.add_paths([EXAMPLES / "corpus"])
        rag = RAG(kb, config=GenerationConfig(max_new_tokens=32))
        for line in lines:
            question = json.loads(line)
            marks = []
            for method in right:
                answer = rag.ask(question["question"], method=method)
                found = words(question["answer"]) in words(answer.text)
                right[method] += found
                marks.append(f"{method} {'right' if found else 'wrong'}")
            console.print(f"{', '.join(marks)}: {question['question']} ({question['answer']})", markup=False)
    console.print(f"Of {len(lines)}: {right['packet']} from packets, {right['full']} with full prefill.")
    return right


if __name__ == "__main__":
    main(*sys.argv[1:])
