"""What LlamaIndex's instrumentation can hear of packets."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.events import BaseEvent

__all__ = ["KVPacketAnswerEvent", "KVPacketLoadEvent"]


class KVPacketLoadEvent(BaseEvent):
    """Packets were placed in a context."""

    chunks: list[str]
    """Ids of their chunks, in order."""
    missed: int
    """Retrieved texts that had none."""
    built: int
    """Packets that had to be built for it."""
    seconds: float
    """Finding and loading."""

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "KVPacketLoadEvent"


class KVPacketAnswerEvent(BaseEvent):
    """An answer ended, or was stopped."""

    text: str
    cost: dict[str, Any]
    """As in `response.metadata["kvpacket"]`."""

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "KVPacketAnswerEvent"
