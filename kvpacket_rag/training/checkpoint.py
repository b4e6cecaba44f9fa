"""The checkpoint of a training run on disk, from which an interrupted run resumes without losing a finished step.

The file uses safetensors and JSON, not pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvpacket_rag.errors import InputError

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

FILE = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that a run needs in order to resume."""

    tensors: Mapping[str, Tensor]
    """The parameters, the optimiser's moments and the best parameters so far."""
    facts: Mapping[str, Any]
    """JSON values: the history, the measurements, and what the run was started with (model, settings, lessons)."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of a run atomically. After a crash, the folder holds either the old one or the new one."""
    part = folder / f"{FILE}.part"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, part, metadata={"facts": json.dumps(checkpoint.facts)})
    part.replace(folder / FILE)


def load_checkpoint(folder: Path, started_with: Mapping[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of a run, or None if there is none.

    Raises `InputError` if it belongs to a run that was started with another model, other settings or other lessons.
    """
    if not (folder / FILE).exists():
        return None
    with safe_open(folder / FILE, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
    wanted = json.loads(json.dumps(started_with))
    for name, value in wanted.items():
        if facts["started_with"].get(name) != value:
            raise InputError(
                f"{folder} holds a training run with another {name}: {facts['started_with'].get(name)!r}, not {value!r}. "
                "Choose another folder, or delete it."
            )
    return Checkpoint(tensors, facts)


def moments(optimiser: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimiser's state as tensors, by the names of moment and parameter."""
    found: dict[str, Tensor] = {}
    for name, parameter in names.items():
        for moment, value in optimiser.state.get(parameter, {}).items():
            found[f"{moment}/{name}"] = torch.as_tensor(value)
    return found


def restore(optimiser: torch.optim.Optimizer, names: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Restore the parameters and the optimiser's moments from a checkpoint."""
    for name, parameter in names.items():
        parameter.data.copy_(tensors[f"now/{name}"])
        if f"step/{name}" in tensors:
            optimiser.state[parameter] = {moment: tensors[f"{moment}/{name}"].clone() for moment in MOMENTS}
