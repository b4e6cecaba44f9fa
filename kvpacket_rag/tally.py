"""How far a build is, and what it did."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

__all__ = ["AddReport", "BuildProgress", "Tally", "Told"]


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is."""

    documents: int
    """Documents committed or found unchanged."""
    total: int | None
    """Documents in all; None where they come from an iterator."""
    chunks: int
    """Chunks encoded in this build."""
    tokens: int
    """Their tokens."""
    seconds: float
    """Time spent so far."""


Told = Callable[[BuildProgress], None]
"""Who is told how far a build is."""


@dataclass(frozen=True)
class AddReport:
    """What an `add` did."""

    added: int = 0
    """Documents that were new."""
    updated: int = 0
    """Documents that took the place of an older version."""
    unchanged: int = 0
    """Documents that were in the store already, word for word."""
    chunks: int = 0
    """Chunks of added and updated documents."""
    packets_built: int = 0
    """Packets the model computed."""
    tokens_built: int = 0
    """Tokens of the packets built; chunks whose packet existed cost none."""
    seconds: float = 0.0
    """Time spent."""
    failed: tuple[tuple[str, str], ...] = ()
    """Files found in folders that could not be read: (path, reason)."""


@dataclass(eq=False)
class Tally:
    """Counts along."""

    total: int | None
    started: float = field(default_factory=time.monotonic)
    report: AddReport = field(default_factory=AddReport)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        self.report = replace(self.report, **{name: getattr(self.report, name) + n for name, n in more.items()})

    def progress(self) -> BuildProgress:
        """Say how far it is."""
        done = self.report.added + self.report.updated + self.report.unchanged
        return BuildProgress(
            done, self.total, self.report.packets_built, self.report.tokens_built, time.monotonic() - self.started
        )
