"""The report of a training run: report.json, and a picture of the training curves."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from kvpacket_rag.display.plots import new_figure
from kvpacket_rag.training.config import DistillConfig
from kvpacket_rag.training.distillation import Trained

__all__ = ["write_report"]


def write_report(trained: Trained, config: DistillConfig, folder: Path) -> dict[str, Any]:
    """Write report.json and report.png into a folder, and return the report as JSON values."""
    report = {
        "accepted": trained.accepted,
        "without": dict(trained.without),
        "with": dict(trained.best),
        "card": asdict(trained.adapter.card),
        "config": asdict(config),
        "history": list(trained.history),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _draw(trained, folder / "report.png")
    return report


def _draw(trained: Trained, path: Path) -> None:
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    steps = range(1, len(trained.history) + 1)
    axes.plot(
        steps, [entry["loss"] for entry in trained.history], color="tab:gray", linewidth=0.8, label="loss of each step"
    )
    measured = [
        (n, entry["fidelity"]) for n, entry in zip(steps, trained.history, strict=True) if entry["fidelity"] is not None
    ]
    axes.plot(*zip(*measured, strict=True), "o-", color="tab:red", label="held out: KL per answer token")
    axes.axhline(
        fmean(trained.without.values()), color="black", linewidth=0.8, linestyle="--", label="held out: before"
    )
    axes.set_xlabel("step")
    axes.set_ylabel("nats")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
