"""The report of a fidelity run: means with bootstrap intervals, paired differences, tables and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvpacket_rag.bench.environment import machine, versions
from kvpacket_rag.bench.fidelity import FidelityConfig, Record
from kvpacket_rag.bench.measures import interval, ratio_interval
from kvpacket_rag.display.plots import new_figure
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.training.samples.domains import Domain

__all__ = ["summarise", "write_report"]

MEASURES = ("kl", "top1", "f1", "em", "contains", "ttft_s", "tokens_computed", "flops", "bytes_per_token")
WITH_INTERVAL = ("kl", "top1", "f1", "em", "contains")


def _by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    by: dict[str, list[Record]] = {}
    for record in records:
        by.setdefault(record.method, []).append(record)
    return by


def _methods(records: Sequence[Record]) -> dict[str, Any]:
    """Return the means over domains of each method's measures, with intervals.

    The result includes comparisons with `full`, `bare` and `anchored`.
    """
    by = _by_method(records)
    groups = {name: [r.domain for r in rows] for name, rows in by.items()}
    found: dict[str, Any] = {}
    for name, rows in by.items():
        values: dict[str, Any] = {}
        for measure in MEASURES:
            pairs = [(getattr(r, measure), r.domain) for r in rows if getattr(r, measure) is not None]
            if not pairs:  # no question has a label
                values[measure] = None
                continue
            numbers, domains = zip(*pairs, strict=True)
            spread = interval(numbers, domains)
            # A busy machine causes outliers in times. The median ignores them.
            values[measure] = (
                asdict(spread)
                if measure in WITH_INTERVAL
                else float(np.median(numbers))
                if measure == "ttft_s"
                else spread.mean
            )
        for other in ("bare", "anchored"):
            if other in by and other != name:
                kls = [r.kl for r in rows], [r.kl for r in by[other]]
                values[f"kl_over_{other}"] = asdict(ratio_interval(*kls, groups[name]))
        if "full" in by and name != "full":
            both = [(a, b) for a, b in zip(rows, by["full"], strict=True) if a.f1 is not None and b.f1 is not None]
            gained = [float(a.f1 or 0) - float(b.f1 or 0) for a, b in both]
            values["f1_minus_full"] = asdict(interval(gained, [a.domain for a, _ in both])) if both else None
        found[name] = values
    return found


def summarise(
    records: Sequence[Record], model: PacketModel, domains: Sequence[Domain], config: FidelityConfig
) -> dict[str, Any]:
    """Return the whole report as JSON values."""
    per_domain = {
        domain.name: {
            "source": domain.source,
            "n": len(domain.samples),
            "methods": _methods([r for r in records if r.domain == domain.name]),
        }
        for domain in domains
    }
    return {
        "model": model.name,
        **machine(model),
        "config": asdict(config),
        "versions": versions(),
        "methods": _methods(records),
        "domains": per_domain,
    }


def _spread(value: Mapping[str, float] | None, digits: int = 3, scale: float = 1.0) -> str:
    if value is None:
        return "–"
    mean, low, high = (f"{scale * value[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})"


def _percent(value: Mapping[str, float] | None) -> str:
    return "–" if value is None else f"{100 * value['mean']:.0f}"


def _table(methods: Mapping[str, Any]) -> list[str]:
    lines = [
        "| method | KL per answer token | ÷ bare | ÷ anchored | top-1 | F1 | F1 − full | EM | contains | first token | tokens computed | GFLOP | bytes/token |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, m in methods.items():
        cells = [
            name,
            _spread(m["kl"]),
            _spread(m.get("kl_over_bare"), 2),
            _spread(m.get("kl_over_anchored"), 2),
            f"{m['top1']['mean']:.3f}",
            _spread(m["f1"], 1, 100),
            _spread(m.get("f1_minus_full"), 1, 100),
            _percent(m["em"]),
            _percent(m["contains"]),
            f"{1000 * m['ttft_s']:.0f} ms",
            f"{m['tokens_computed']:.0f}",
            f"{m['flops'] / 1e9:.1f}",
            f"{m['bytes_per_token']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown tables: first the mean over domains, then each domain."""
    config = report["config"]
    lines = [
        f"Fidelity to full prefill, {report['model']} in {report['dtype']} on {report['device']} with {report['threads']} threads: "
        f"{config['k']} chunks of at most {config['chunk_tokens']} tokens, answers of at most {config['max_new_tokens']}, seed {config['seed']}.",
        "Values are means with 95 % bootstrap intervals. The time to first token is a median. KL is in nats; F1, EM and contains are in percent.",
        "",
    ]
    domains = report["domains"]
    if len(domains) > 1:
        lines += [f"Mean over {len(domains)} domains", "", *_table(report["methods"]), ""]
    for name, domain in domains.items():
        lines += [f"{name}, n = {domain['n']} ({domain['source']})", "", *_table(domain["methods"]), ""]
    lines.append("Versions: " + ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".")
    return "\n".join(lines)


def _draw(report: Mapping[str, Any], path: Path) -> None:
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    points = {
        name: (1000 * m["ttft_s"], m["kl"]) for name, m in report["methods"].items() if name not in ("full", "none")
    }
    front = [
        name
        for name, (time, kl) in points.items()
        if not any(t < time and k["mean"] < kl["mean"] for t, k in points.values())
    ]
    for number, (name, (time, kl)) in enumerate(sorted(points.items(), key=lambda point: point[1][0])):
        error = [[kl["mean"] - kl["low"]], [kl["high"] - kl["mean"]]]
        colour = "tab:red" if name == "packet" else "tab:blue" if name in front else "tab:gray"
        axes.errorbar([time], [kl["mean"]], yerr=error, fmt="o", color=colour, capsize=3)
        # Names stand alternately above and below their points, so that neighbours do not overlap.
        place = (6, 4) if number % 2 else (6, -11)
        axes.annotate(name, (time, kl["mean"]), xytext=place, textcoords="offset points", fontsize=9, color=colour)
    line = sorted((*points[name][0:1], points[name][1]["mean"]) for name in front)
    axes.plot([x for x, _ in line], [y for _, y in line], color="tab:blue", linewidth=0.8, linestyle=":", zorder=0)
    if "full" in report["methods"]:
        axes.axvline(1000 * report["methods"]["full"]["ttft_s"], color="black", linewidth=0.8, linestyle="--")
        axes.annotate(
            "full prefill", (1000 * report["methods"]["full"]["ttft_s"], 1), xycoords=("data", "axes fraction"),
            xytext=(-4, -4), textcoords="offset points", ha="right", va="top", fontsize=9,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("time to first token, ms (median)")
    axes.set_ylabel("KL to full prefill per answer token, nats")
    axes.set_title(
        f"{report['model']}, {report['config']['k']} chunks, {len(report['domains'])} domains: lower and further left is better",
        fontsize=10,
    )
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=150)


def write_report(report: Mapping[str, Any], folder: Path) -> str:
    """Write report.json, report.md and report.png into a folder, and return the Markdown."""
    text = markdown(report)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")
    _draw(report, folder / "report.png")
    return text
