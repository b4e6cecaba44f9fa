"""The methods by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpacket_rag.bench.methods.a3 import A3
from kvpacket_rag.bench.methods.base import AbstractMethod
from kvpacket_rag.bench.methods.cacheblend import CacheBlend
from kvpacket_rag.bench.methods.epic import Epic
from kvpacket_rag.bench.methods.full import FullPrefill, NoDocuments
from kvpacket_rag.bench.methods.packets import PacketMethod
from kvpacket_rag.bench.methods.random_tokens import RandomTokens
from kvpacket_rag.bench.methods.repair import AbstractRepair
from kvpacket_rag.bench.methods.samkv import SamKV
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter
from kvpacket_rag.packets.anchor import PASSAGES, Anchor
from kvpacket_rag.packets.number_formats import QUANTISED

__all__ = ["ALL", "CORE", "make_methods"]

REPAIRS: Mapping[str, type[AbstractRepair]] = {kind.kind: kind for kind in (Epic, CacheBlend, SamKV, A3, RandomTokens)}
DEFAULT_PERCENT = 30
MOST_OWN = 4
"""The largest number of corpus passages in an anchor that a name (`own-4`) can request."""

CORE = ("full", "none", "bare", "paper", "anchored", "packet")
ALL = (
    *CORE, "own-2", "sink", "one-anchor", "epic-10", "epic-30", "epic-50", "cacheblend-10", "cacheblend-30", "cacheblend-50",
    "samkv-30", "a3-30", "random-30",
)  # fmt: skip


def make_methods(
    names: Sequence[str], *, packet: Adapter | None = None, paper: Adapter | None = None
) -> list[AbstractMethod]:
    """Create methods by name.

    The name of a recomputing method may include its percentage (`epic-10`). "all" and "core" stand for lists.
    packet, paper: the adapters of the methods with these names. Lists leave out a method whose adapter is missing.
    Raises `InputError` for an unknown name, or if the adapter of a method requested by its own name is missing.
    """
    made: dict[str, AbstractMethod] = {}
    for name in names:
        lists = {"all": ALL, "core": CORE}
        for one in lists.get(name, (name,)):
            if name in lists and {"packet": packet, "paper": paper}.get(one, True) is None:
                continue
            method = _make(one, packet, paper)
            made.setdefault(method.name, method)
    return list(made.values())


def _make(name: str, packet: Adapter | None, paper: Adapter | None) -> AbstractMethod:
    adapters = {"packet": packet, "paper": paper, **{f"packet-{bits}": packet for bits in QUANTISED}}
    if name in adapters and adapters[name] is None:
        raise InputError(
            f"The method {name!r} needs an adapter for this model, and none is shipped. Train one with `kvpacket train` and "
            f"pass its file with --{'paper-adapter' if name == 'paper' else 'adapter'}, or leave the method out."
        )
    plain: dict[str, AbstractMethod] = {
        "full": FullPrefill(),
        "none": NoDocuments(),
        "bare": PacketMethod("bare", Anchor.NONE),
        "paper": PacketMethod("paper", Anchor.NONE, paper),
        "sink": PacketMethod("sink", Anchor.OPENING),
        "one-anchor": PacketMethod("one-anchor", Anchor.PASSAGES),
        "anchored": PacketMethod("anchored", Anchor.PASSAGES, first=Anchor.OPENING),
        "packet": PacketMethod("packet", None, packet),
    }
    for bits in QUANTISED:
        plain |= {
            f"anchored-{bits}": PacketMethod(f"anchored-{bits}", Anchor.PASSAGES, first=Anchor.OPENING, storage=bits),
            f"packet-{bits}": PacketMethod(f"packet-{bits}", None, packet, storage=bits),
        }
    if name in plain:
        return plain[name]
    kind, _, percent = name.partition("-")
    if kind == "passages" and percent.isdigit() and 1 <= int(percent) <= len(PASSAGES):
        texts = PASSAGES[: int(percent)]
        return PacketMethod(name, Anchor.CORPUS, first=Anchor.OPENING, texts=texts)
    if kind == "own" and percent.isdigit() and 1 <= int(percent) <= MOST_OWN:
        return PacketMethod(name, Anchor.CORPUS, first=Anchor.OPENING, own=int(percent))
    if kind in REPAIRS and (percent.isdigit() or not percent):
        return REPAIRS[kind](int(percent or DEFAULT_PERCENT) / 100)
    raise InputError(
        f"There is no method {name!r}. Choose from all, core, {', '.join([*plain, *REPAIRS])}. Methods that recompute tokens take a "
        f"percentage, such as epic-10. passages-1 to passages-{len(PASSAGES)} use an anchor of fewer passages; own-1 to own-{MOST_OWN} use an anchor "
        "of passages from the questions' own corpus."
    )
