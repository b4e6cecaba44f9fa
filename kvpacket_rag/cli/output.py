"""Functions that print results of commands and parse values of options."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpacket_rag.display.terminal import counted, out
from kvpacket_rag.errors import InputError

if TYPE_CHECKING:
    from kvpacket_rag.answering.answer import Answer
    from kvpacket_rag.store.integrity import VerifyReport

__all__ = ["make_folder", "parse_bytes", "parse_filter", "print_answer", "print_json", "print_verification"]


def print_json(value: Any) -> None:
    """Print a value as JSON and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as 20GB or 1.5 GiB. Raises `InputError` if the text is not a size."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise InputError(f"A size must be like 500MB, 20GB or 1.5GiB; got {text!r}.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def parse_filter(text: str) -> dict[str, Any]:
    """Read a metadata filter from JSON. Raises `InputError` if it is not a JSON object with valid conditions."""
    from kvpacket_rag.retrieval.filters import parse

    try:
        conditions = json.loads(text)
    except ValueError as error:
        raise InputError(f'--filter must be JSON, such as \'{{"lang": "en"}}\'; got {text!r} ({error}).') from error
    parse(conditions)
    return dict(conditions)


def make_folder(folder: Path) -> None:
    """Create a folder for reports before long work begins. Raises `InputError` if it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"No report can be written to {folder}: {error.strerror}. Choose another folder.") from error


def print_answer(answer: Answer) -> None:
    """Print the sources, tokens and timings of an answer."""
    usage, times = answer.usage, answer.timings
    for number, hit in enumerate(answer.sources, start=1):
        out.print(
            f"  [{number}] {hit.chunk.document}  (part {hit.chunk.ordinal + 1}, score {hit.score:.2f})",
            markup=False,
        )
    out.print(
        f"\n{counted(usage.reused, 'token')} reused ({usage.packet_tokens} from packets), {usage.computed_tokens} computed; "
        f"first token after {times.first_token:.2f} s (search {times.search:.2f}, load {times.load:.2f}, "
        f"assemble {times.assemble:.2f}, question {times.question:.2f}); {counted(usage.answer_tokens, 'token')} in {times.total:.2f} s."
    )
    for note in usage.notes:
        out.print(note)


def print_verification(report: VerifyReport) -> None:
    """Print what `verify` found, and a summary as the last line."""
    for key, fault in report.damaged:
        out.print(f"Damaged: packet {key[:12]}: {fault}.", markup=False)
    for file in report.orphans:
        out.print(f"Left over: {file} (`kvpacket gc` removes it).", markup=False)
    for line in report.database:
        out.print(f"Database: {line}.", markup=False)
    if report.repaired:
        out.print(f"{counted(report.repaired, 'packet')} rebuilt.")
    if report.without_packet:
        out.print(
            f"{counted(report.without_packet, 'chunk')} without a stored packet. Packets are built when first used."
        )
    out.print(
        f"{counted(report.packets, 'packet')} checked: {'no problems found' if report.clean else 'problems found'}."
    )
