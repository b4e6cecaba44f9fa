"""What a store tells of its work: a small record for each step, logged, and handed to whoever asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = [
    "AddReport", "Answered", "BuildListener", "BuildProgress", "DamageFound", "DocumentRemoved", "DocumentStored", "Event", "Events", "Hook", "PacketsBuilt", "PacketsEvicted",
    "PacketsLoaded", "Searched",
]  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that was done. As a log record it has the fields in `record.kvpacket`."""


@dataclass(frozen=True)
class Searched(Event):
    """The nearest chunks of a question were found."""

    hits: int
    seconds: float
    """Without embedding the question."""


@dataclass(frozen=True)
class PacketsLoaded(Event):
    """The packets of a context were asked for."""

    from_memory: int
    read: int
    missing: int
    """Not stored, and built therefore."""
    bytes: int
    """Read from where packets lie."""
    seconds: float
    """Without building."""


@dataclass(frozen=True)
class PacketsBuilt(Event):
    """The model read chunks."""

    packets: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class PacketsEvicted(Event):
    """Packets went because the store has a limit."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class DocumentStored(Event):
    """A document was added, or took the place of its old version."""

    document: str
    chunks: int
    updated: bool


@dataclass(frozen=True)
class DocumentRemoved(Event):
    """A document was removed."""

    document: str


@dataclass(frozen=True)
class DamageFound(Event):
    """A packet was not what was written, and was not served."""

    packet: str
    fault: str


@dataclass(frozen=True)
class Answered(Event):
    """A question was answered, or its answering stopped."""

    method: str
    usage: Mapping[str, object]
    """The fields of `Usage`."""
    timings: Mapping[str, float]
    """The fields of `Timings`, seconds."""


Hook = Callable[[Event], None]
"""Called with each event, in the thread that did the work."""


class Events:
    """Tells hooks and the log."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def emit(self, event: Event) -> None:
        """Tell of an event. A hook that fails is logged, and stops nothing."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", event, extra={"kvpacket": {"event": type(event).__name__, **asdict(event)}})
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("A hook failed on %s; the work goes on.", type(event).__name__)


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


BuildListener = Callable[[BuildProgress], None]
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
