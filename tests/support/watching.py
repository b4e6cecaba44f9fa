"""What tests watch while something runs: how late an event loop is, what a model encodes; and examples as modules."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvpacket_rag.engine.transformers.packet_model import PacketModel

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Seconds by which each tick of 10 ms comes late."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            late.append(time.perf_counter() - began - 0.01)

    task = asyncio.create_task(tick())
    try:
        yield late
    finally:
        task.cancel()


@contextmanager
def encoding(model: PacketModel) -> Iterator[list[int]]:
    """Numbers of chunks in each forward pass that encodes."""
    counts: list[int] = []
    original = type(model)._encode_batch

    def counted(self: PacketModel, chunks: list[Any], *args: Any) -> Any:
        counts.append(len(chunks))
        return original(self, chunks, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "_encode_batch", counted)
        yield counts


def example(path: str) -> ModuleType:
    """Load an example, given below `examples/`."""
    file = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # pydantic looks names up there
    spec.loader.exec_module(module)
    return module
