"""Methods of making a context, for comparison: full prefill, packets of several kinds, and repaired caches."""

from kvpacket_rag.baselines.base import AbstractMethod, Begun, Pass
from kvpacket_rag.baselines.registry import ALL, CORE, make_methods

__all__ = ["ALL", "CORE", "AbstractMethod", "Begun", "Pass", "make_methods"]
