"""Events that a store emits for each step of its work. Each event is logged and passed to every registered hook."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = [
    "AddReport", "Answered", "BuildListener", "BuildProgress", "DamageFound", "DocumentRemoved", "DocumentStored", "Event", "Events", "Hook", "PacketsBuilt", "PacketsEvicted", "PacketsHealed",
    "PacketsLoaded", "Searched",
]  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """The base class of events. The log record of an event has the event's fields in `record.kvpacket`."""


@dataclass(frozen=True)
class Searched(Event):
    """The chunks nearest to a question were found."""

    hits: int
    seconds: float
    """Duration, without embedding the question."""


@dataclass(frozen=True)
class PacketsLoaded(Event):
    """The packets of a context were requested."""

    from_memory: int
    read: int
    missing: int
    """Packets that were not stored and therefore had to be built."""
    bytes: int
    """Bytes read from storage."""
    seconds: float
    """Duration, without building packets."""


@dataclass(frozen=True)
class PacketsBuilt(Event):
    """The model encoded chunks into packets."""

    packets: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class PacketsEvicted(Event):
    """Packets were evicted because the store has reached its size limit."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class DocumentStored(Event):
    """A document was added, or replaced its old version."""

    document: str
    chunks: int
    updated: bool


@dataclass(frozen=True)
class DocumentRemoved(Event):
    """A document was removed."""

    document: str


@dataclass(frozen=True)
class DamageFound(Event):
    """A packet was damaged and was not served."""

    packet: str
    fault: str


@dataclass(frozen=True)
class PacketsHealed(Event):
    """Damaged packets were dropped, to be rebuilt from the text of their chunks."""

    packets: int


@dataclass(frozen=True)
class Answered(Event):
    """A question was answered, or its answer was stopped early."""

    method: str
    usage: Mapping[str, object]
    """The fields of `Usage`."""
    timings: Mapping[str, float]
    """The fields of `Timings`, in seconds."""


Hook = Callable[[Event], None]
"""A function that is called with each event, in the thread that did the work."""


class Events:
    """Passes events to the log and to hooks."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def emit(self, event: Event) -> None:
        """Log an event and call every hook. If a hook fails, its error is logged and the work continues."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", event, extra={"kvpacket": {"event": type(event).__name__, **asdict(event)}})
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("A hook failed on %s. The work continues.", type(event).__name__)


@dataclass(frozen=True)
class BuildProgress:
    """The progress of a build."""

    documents: int
    """Documents committed or found unchanged."""
    total: int | None
    """Total number of documents; None if they come from an iterator."""
    chunks: int
    """Chunks encoded in this build."""
    tokens: int
    """Tokens of these chunks."""
    seconds: float
    """Time spent so far."""


BuildListener = Callable[[BuildProgress], None]
"""A function that is called with the progress of a build."""


@dataclass(frozen=True)
class AddReport:
    """The result of an `add`."""

    added: int = 0
    """Documents that were new."""
    updated: int = 0
    """Documents that replaced an older version."""
    unchanged: int = 0
    """Documents that were already in the store, word for word."""
    chunks: int = 0
    """Chunks of added and updated documents."""
    packets_built: int = 0
    """Packets that the model computed."""
    tokens_built: int = 0
    """Tokens of the packets built. Chunks whose packet already existed cost none."""
    seconds: float = 0.0
    """Time spent."""
    failed: tuple[tuple[str, str], ...] = ()
    """Files in folders that could not be read, each as (path, reason)."""
