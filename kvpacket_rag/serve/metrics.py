"""A hook that counts events for Prometheus (extra `metrics`): `DocumentStore.open(..., hooks=[Metrics()])`."""

from __future__ import annotations

from typing import Any

from kvpacket_rag.errors import require
from kvpacket_rag.events import (
    Answered,
    DamageFound,
    DocumentRemoved,
    DocumentStored,
    Event,
    PacketsBuilt,
    PacketsEvicted,
    PacketsHealed,
    PacketsLoaded,
    Searched,
)

__all__ = ["Metrics"]

STEPS = ("search", "load", "assemble", "question", "first_token", "total")
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """A hook that counts events. Several stores may share one hook. A registry can hold only one."""

    def __init__(self, registry: Any = None) -> None:
        """registry: a `prometheus_client.CollectorRegistry`; default the registry of the process.

        Raises `MissingDependencyError` without prometheus-client.
        """
        client = require("prometheus_client", extra="metrics", purpose="Counting for Prometheus")
        self.registry = client.REGISTRY if registry is None else registry

        def counter(name: str, about: str, *labels: str) -> Any:
            return client.Counter(f"kvpacket_{name}", about, labels, registry=self.registry)

        self._packets = counter("packets", "Packets requested, by source.", "source")
        self._read = counter("read_bytes", "Bytes of packets read from storage.")
        self._built = counter("built_tokens", "Tokens of packets that were built.")
        self._building = counter("building_seconds", "Seconds spent building packets.")
        self._evicted = counter("evicted_packets", "Packets evicted because of the store's limit.")
        self._evicted_bytes = counter("evicted_bytes", "Bytes of evicted packets.")
        self._damaged = counter("damaged_packets", "Packets found to be damaged.")
        self._healed = counter("healed_packets", "Damaged packets that were rebuilt from the text.")
        self._documents = counter("documents", "Documents, by kind of change.", "change")
        self._tokens = counter("prompt_tokens", "Tokens of prompts, by source of their states.", "source")
        self._steps = client.Histogram(
            "kvpacket_step_seconds", "Seconds per step of answering.", ("step", "method"), buckets=SECONDS, registry=self.registry
        )  # fmt: skip
        self._index = client.Histogram(
            "kvpacket_index_seconds",
            "Seconds spent finding the nearest chunks.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def __call__(self, event: Event) -> None:
        """Count an event. Events without a counter are ignored."""
        match event:
            case PacketsLoaded():
                for source, count in (("memory", event.from_memory), ("read", event.read), ("built", event.missing)):
                    self._packets.labels(source).inc(count)
                self._read.inc(event.bytes)
            case PacketsBuilt():
                self._built.inc(event.tokens)
                self._building.inc(event.seconds)
            case PacketsEvicted():
                self._evicted.inc(event.packets)
                self._evicted_bytes.inc(event.bytes)
            case DamageFound():
                self._damaged.inc()
            case PacketsHealed():
                self._healed.inc(event.packets)
            case DocumentStored():
                self._documents.labels("updated" if event.updated else "added").inc()
            case DocumentRemoved():
                self._documents.labels("removed").inc()
            case Searched():
                self._index.observe(event.seconds)
            case Answered():
                self._answered(event)

    def _answered(self, event: Answered) -> None:
        for step in STEPS:
            self._steps.labels(step, event.method).observe(event.timings[step])
        for source in ("packet_tokens", "prefix_tokens", "computed_tokens"):
            count = event.usage[source]
            self._tokens.labels(source.removesuffix("_tokens")).inc(count if isinstance(count, int) else 0)
