"""What a sweep found, as text: a statement a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsexplore.aio.statistics import median
from dsexplore.units import format_bytes, format_rate

if TYPE_CHECKING:
    from dsexplore.aio.measure import Sample
    from dsexplore.aio.result import SweepResult


def verdict(result: SweepResult) -> list[str]:
    """What was measured, the setting to take, and what it gives in each direction."""
    told = [f"{result.disk.label}; {result.conditions.mode} mode by {result.conditions.backend}"]
    if result.interrupted:
        told.append("Interrupted: the results so far.")
    if not result.rounds:
        return [*told, "No setting was compared with the default yet."]
    best = result.best()
    told.append(best.sentence())
    for operation in result.operations:
        chosen = [m.sample for m in result.deciding if m.sample.config == best.config]
        told += _direction(operation, [sample for sample in chosen if sample.operation == operation])
    overwritten = f" ({result.conditions.write_mode})" if result.bytes_written else ""
    told.append(f"{format_bytes(result.bytes_written)} written{overwritten} in {result.elapsed:.0f} s")
    return told


def _direction(operation: str, samples: list[Sample]) -> Iterator[str]:
    rates = [sample.rate for sample in samples]
    spread = f"{min(rates) / 1e9:.2f}–{max(rates) / 1e9:.2f} GB/s, n {len(rates)}"
    yield f"{operation}: median {format_rate(median(rates))}, {spread}"
    if any(sample.fsync_seconds for sample in samples):
        yield f"{operation} with fsync: median {format_rate(median([sample.durable_rate for sample in samples]))}"
    p50, p95, p99 = (median([getattr(s, name) for s in samples]) * 1e3 for name in ("p50", "p95", "p99"))
    cpu = median([sample.cpu_ms_per_gib for sample in samples])
    yield (
        f"{operation} latency of a request: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}, "
        f"longest {max(sample.longest for sample in samples) * 1e3:.2f} ms; {cpu:.1f} ms of CPU per GiB"
    )


def surroundings(result: SweepResult) -> list[str]:
    """What else was measured beside the setting, and what could not be, with the reason."""
    told = [
        f"{reference.name}, {reference.operation}: median {format_rate(reference.rate)}, n {len(reference.rates)}; "
        + (reference.note if str(reference.config) in reference.note else f"{reference.config}; {reference.note}")
        for reference in result.references
    ]
    missing = sorted(result.conditions.unavailable.items())
    return told + [f"{name} did not run: {' '.join(reason.split())}" for name, reason in missing]
