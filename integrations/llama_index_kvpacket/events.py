"""Events about packets for LlamaIndex's instrumentation."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.events import BaseEvent

__all__ = ["KVPacketAnswerEvent", "KVPacketLoadEvent"]


class KVPacketLoadEvent(BaseEvent):
    """Packets were placed in a context."""

    chunks: list[str]
    """Ids of their chunks, in order."""
    missed: int
    """Retrieved texts without a packet."""
    built: int
    """Packets that had to be built for the context."""
    seconds: float
    """Seconds spent finding chunks and loading packets."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the event."""
        return "KVPacketLoadEvent"


class KVPacketAnswerEvent(BaseEvent):
    """An answer ended or was stopped."""

    text: str
    cost: dict[str, Any]
    """The same values as in `response.metadata["kvpacket"]`."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the event."""
        return "KVPacketAnswerEvent"
