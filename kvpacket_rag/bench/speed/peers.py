"""Time to first token, compared with alternatives on the same prompt and machine.

With transformers, it measures full prefill, and prefix caches of chunks that are saved with torch.save, loaded again
and concatenated as in TurboRAG (arXiv 2410.07590). With llama.cpp, it measures full prefill, and the prefix cache when
the same context is repeated and when its chunks are reordered. llama.cpp runs a GGUF file of the same model, whose
weights may have fewer bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvpacket_rag.bench.environment import machine
from kvpacket_rag.bench.report import Column, Picture, Report, Table, Value
from kvpacket_rag.bench.speed.material import CHUNK_TOKENS, Material, fitting, left_out, make_material
from kvpacket_rag.bench.speed.timing import Progress, Spread, Way, interleaved, ratio
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.engine.transformers.reference import Reference
from kvpacket_rag.errors import InputError, require
from kvpacket_rag.training.samples.prompts import Question

__all__ = ["measure_peers"]

TITLES = {
    "ram": "packets, memory",
    "disk": "packets, page cache",
    "full": "transformers, full prefill",
    "reload": "transformers, chunk caches by torch.load",
    "cpp_full": "llama.cpp, full prefill",
    "cpp_again": "llama.cpp, same context again",
    "cpp_reordered": "llama.cpp, chunks reordered",
}


def measure_peers(
    model: PacketModel,
    lengths: Sequence[int],
    *,
    gguf: Path | None = None,
    repeats: int = 5,
    progress: Progress | None = None,
) -> Report:
    """Measure at several context lengths. gguf: the model file for llama.cpp. Without it, llama.cpp is left out.

    Raises `MissingDependencyError` if a GGUF file is given and llama-cpp-python is not installed.
    """
    wanted, skipped = fitting(model, list(lengths))
    if min(wanted) < 2 * CHUNK_TOKENS:
        raise InputError(
            f"Lengths must be at least {2 * CHUNK_TOKENS} tokens, so that there are two packets to reorder; got {min(wanted)}."
        )
    cpp = _LlamaCpp(gguf, max(wanted) + CHUNK_TOKENS, torch.get_num_threads()) if gguf else None
    rows: list[dict[str, Value]] = []
    with make_material(model, max(wanted) // CHUNK_TOKENS) as material, tempfile.TemporaryDirectory() as folder:
        saved = _Saved(material, Path(folder))
        for number, length in enumerate(wanted):
            count = length // CHUNK_TOKENS
            ways = _ways(material, count, saved) | (cpp.ways(material.at(count)) if cpp else {})
            seconds = interleaved(ways, repeats, synchronize=model.synchronize)
            ratios = {f"{name}_over_ram": ratio(seconds, name, "ram") for name in ways if name not in ("ram", "disk")}
            spreads = {name: Spread.of(values) for name, values in seconds.items()}
            rows.append({"context": count * CHUNK_TOKENS, **spreads, **ratios})
            if progress is not None:
                progress(number + 1, len(wanted))
    columns = [Column("context", "context tokens", "count")]
    columns += [Column(name, title, "ms") for name, title in TITLES.items() if name in rows[0]]
    against = [
        Column(f"{name}_over_ram", f"{title} ÷ packets", "times")
        for name, title in TITLES.items()
        if f"{name}_over_ram" in rows[0]
    ]
    about = {"model": model.name, **machine(model), "chunk_tokens": CHUNK_TOKENS, "rounds": repeats}
    if cpp:
        about |= {"gguf": gguf.name if gguf else "", "llama_cpp": cpp.version}
    tables = (
        Table("", tuple(columns), tuple(rows)),
        Table("Relative to packets in memory", (columns[0], *against), tuple(rows)),
    )
    picture = Picture("context", tuple(TITLES), "context, tokens", "seconds to first token")
    return Report("Comparison with alternatives", about, tables, left_out(skipped), picture)


class _Saved:
    """KV caches of chunks, each computed alone and saved with torch.save."""

    def __init__(self, material: Material, folder: Path) -> None:
        self.reference = Reference(material.model)
        self._files = [folder / f"{number}.pt" for number in range(len(material.question.chunks) + 1)]
        for file, ids in zip(self._files, (material.question.prefix, *material.question.chunks), strict=True):
            cache = self.reference.prefill([ids], whole=True)
            torch.save([(layer.keys, layer.values) for layer in cache.layers], file)

    def ask(self, question: Question) -> int:
        """Load the KV caches of the prefix and the chunks, concatenate them, and run the question over them."""
        parts = [torch.load(file, weights_only=True) for file in self._files[: len(question.chunks) + 1]]
        return int(self.reference.run([question.tail], self.reference.joined(parts)).argmax())


def _ways(material: Material, count: int, saved: _Saved) -> dict[str, Way]:
    question, reference = material.at(count), saved.reference
    others = {"full": Way(lambda: reference.first(question.ids)), "reload": Way(lambda: saved.ask(question))}
    return material.ways(count) | others


class _LlamaCpp:
    """llama.cpp through llama-cpp-python, with its own prefix cache."""

    def __init__(self, gguf: Path, positions: int, threads: int) -> None:
        module = require("llama_cpp", extra="peers", purpose="Comparing with llama.cpp")
        if not gguf.exists():
            raise InputError(f"There is no file {gguf}; give the GGUF file of the same model.")
        self.version = str(module.__version__)
        self._model: Any = module.Llama(
            str(gguf), n_ctx=positions, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def first(self, ids: Sequence[int]) -> int:
        """Return the first token after the ids. A beginning that is already in the cache is not computed again."""
        return int(next(iter(self._model.generate(list(ids), temp=0.0))))

    def ways(self, question: Question) -> dict[str, Way]:
        """Return the ways: full prefill, the same context again, and the context with reordered chunks."""
        prompt = question.ids
        other = replace(question, tail=question.tail[1:]).ids
        reordered = replace(question, chunks=question.chunks[::-1]).ids

        def after(earlier: Sequence[int]) -> Callable[[], object]:
            return lambda: self.first(earlier)

        return {
            "cpp_full": Way(lambda: self.first(prompt), before=self._model.reset),
            "cpp_again": Way(lambda: self.first(prompt), before=after(other)),
            "cpp_reordered": Way(lambda: self.first(prompt), before=after(reordered)),
        }
