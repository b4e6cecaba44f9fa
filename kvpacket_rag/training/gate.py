"""The gate: whether an adapter wins in every domain of the lessons held out, and not by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

__all__ = ["Measured", "means", "passes", "standard_errors"]

Measured = Mapping[str, Sequence[float]]
"""KL per answer token of each held-out lesson, by domain; the same lessons in the same order in every measurement."""


def means(measured: Measured) -> dict[str, float]:
    """Mean KL per answer token, by domain."""
    return {name: fmean(values) for name, values in measured.items()}


def standard_errors(before: Measured, after: Measured) -> dict[str, float]:
    """Standard errors of the mean differences between two measurements, by domain; 0 where there is one lesson."""
    found = {}
    for name, values in before.items():
        differences = [b - a for b, a in zip(values, after[name], strict=True)]
        found[name] = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return found


def passes(before: Measured, after: Measured) -> bool:
    """Whether the divergence is less in every domain, by more than a standard error of the difference.

    A mean that is only a little lower says nothing on as few lessons as one can hold out: an adapter that had won 2 %
    on twelve lessons of a domain lost 24 % on fifty others.
    """
    old, new, errors = means(before), means(after), standard_errors(before, after)
    return all(new[name] + errors[name] < old[name] for name in old)
