"""The sentences of a sweep: what was measured, remarks, and rates of settings and other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.choice import contenders, recommend
from dsexplore._internal.aio.sweeps.measurements import Measurements, Sample, by_transfer
from dsexplore._internal.aio.sweeps.references import advice_lines, memory_lines
from dsexplore._internal.aio.sweeps.result_rows import shared_sizes
from dsexplore._internal.aio.sweeps.statistics import median, ratio_interval
from dsexplore._internal.units import format_bytes, format_rate, format_rate_range

_MOST_OTHERS = 8
"""Number of other settings that are listed."""
_FASTER_THAN_DRIVES = 7.5e9
"""Bytes per second that no drive on four lanes of PCIe 4.0 exceeds (7.9 GB/s before overhead)."""


def what(result: Measurements) -> str:
    """Return the disk, and how it was measured, in one line."""
    conditions = result.conditions
    processes = f", {conditions.processes} processes at once" if conditions.processes > 1 else ""
    loop = f"{conditions.mode} mode by {conditions.backend} (loop in {conditions.loop})"
    return f"{result.disk.label}; {loop}{processes}"


def remarks(result: Measurements) -> Iterator[str]:
    """Yield sentences on disks that were measured together, and on what was not measured."""
    conditions = result.conditions
    if conditions.further_folders:
        yield f"Measured together with {', '.join(conditions.further_folders)}: rates are of all disks together."
    if result.interrupted:
        yield "Interrupted: the results so far."
    if conditions.left_out:
        yield conditions.left_out
    if result.spent:
        limit = format_bytes(conditions.most_written or 0)
        yield f"Ended when the {limit} that may be written were used up: raise max_written for more rounds."


def rate_lines(result: Measurements) -> Iterator[str]:
    """Yield the settings tied with the fastest, and the rates of the recommended setting in each direction."""
    if not result.rounds:
        return
    best = recommend(result)
    if len(best.tied) > 1:
        yield f"Less than 5 % apart, the cheapest first: {'; '.join(map(str, best.tied))}."
    chosen = by_transfer(m for m in result.deciding if m.sample.config == best.config)
    for operation in result.operations:
        for transfer, slices in chosen.items():
            name = f"{operation} of {format_bytes(transfer)} tensors" if len(chosen) > 1 else operation
            yield from _direction_lines(name, [m.sample for m in slices if m.sample.operation == operation])
    yield from _host_cache_lines(result, _samples(result, best.config, "write"))
    overwritten = f" ({result.conditions.write_mode})" if result.bytes_written else ""
    yield f"{format_bytes(result.bytes_written)} written{overwritten} in {result.elapsed:.0f} s"


def _samples(result: Measurements, config: AioConfig, operation: str) -> list[Sample]:
    """Return the deciding measurements of one setting in one direction."""
    samples = (m.sample for m in result.deciding)
    return [sample for sample in samples if (sample.config, sample.operation) == (config, operation)]


def _direction_lines(name: str, samples: list[Sample]) -> Iterator[str]:
    """Yield rate, rate with fsync, and latencies of one setting in one direction."""
    rates = [sample.rate for sample in samples]
    spread = f"{format_rate_range(min(rates), max(rates))}, " if len(rates) > 1 else ""
    yield f"{name}: median {format_rate(median(rates))}, {spread}n {len(rates)}"
    if any(sample.fsync_seconds for sample in samples):
        yield f"{name} with fsync: median {format_rate(median([sample.durable_rate for sample in samples]))}"
    p50 = median([sample.p50 for sample in samples]) * 1e3
    p95 = median([sample.p95 for sample in samples]) * 1e3
    p99 = median([sample.p99 for sample in samples]) * 1e3
    longest = max(sample.longest for sample in samples) * 1e3
    cpu = median([sample.cpu_ms_per_gib for sample in samples])
    yield (
        f"{name} latency of a request: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}, "
        f"longest {longest:.2f} ms; {cpu:.1f} ms of CPU per GiB"
    )


def _host_cache_lines(result: Measurements, writes: Sequence[Sample]) -> Iterator[str]:
    """Yield a sentence if writes to a virtual disk are durable at a rate that no drive reaches."""
    if not result.disk.is_virtual or not writes:
        return
    durable = median([sample.durable_rate for sample in writes])
    if durable > _FASTER_THAN_DRIVES:
        yield (
            f"{result.disk.device} is a virtual disk, and no usual drive writes {format_rate(durable)} with fsync: a "
            "cache of its host answered. More data than that cache holds may be written slower."
        )


def other_lines(result: Measurements) -> Iterator[str]:
    """Yield the gains of other memory, the other finalists, the rates of references, and why some did not run."""
    yield from memory_lines(result.references, result.operations)
    chosen = recommend(result).config if result.rounds else result.control
    yield from advice_lines(result.references, result.operations, chosen, result.control)
    if result.rounds:
        yield from _finalist_lines(result, chosen)
    for reference in result.references:
        note = reference.note
        if str(reference.config) not in note:
            note = f"{reference.config}; {note}"
        rate = f"median {format_rate(reference.rate)}, n {len(reference.rates)}"
        yield f"{reference.name}, {reference.operation}: {rate}; {note}"
    for name, reason in sorted(result.conditions.unavailable.items()):
        yield f"{name} did not run: {' '.join(reason.split())}"


def _finalist_lines(result: Measurements, chosen: AioConfig) -> Iterator[str]:
    """Yield a line for each finalist besides the recommended setting, the fastest first."""
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in contenders(result).items()}
    others = sorted(means.keys() - {chosen}, key=lambda config: -means[config].value)
    for config in others[:_MOST_OTHERS]:
        rates = []
        for operation in result.operations:
            rate = median([sample.rate for sample in _samples(result, config, operation)])
            rates.append(f"{operation} {format_rate(rate)}")
        ratio = "the default" if config == result.control else f"{means[config]} × the default"
        yield f"{config}: {', '.join(rates)}; {ratio}"
    if len(others) > _MOST_OTHERS:
        yield f"… and {len(others) - _MOST_OTHERS} slower settings"


def differences(result: Measurements, other: Measurements) -> Iterator[str]:
    """Yield sentences on how the conditions of two sweeps differ, which alone may make their rates differ."""
    mine, theirs = result.conditions, other.conditions
    if set(mine.transfers) != set(theirs.transfers):
        shared = sorted(shared_sizes(result.measured, other.measured))
        at = f"the rates below are those of {_sizes(shared)}" if shared else "the rates below are those of all"
        yield f"Tensors are of {_sizes(mine.transfers)} and of {_sizes(theirs.transfers)}: {at}."
    if mine.processes != theirs.processes:
        yield f"Processes at once are {mine.processes} and {theirs.processes}: rates are of all together."
    if mine.further_folders != theirs.further_folders:
        counts = [1 + len(conditions.further_folders) for conditions in (mine, theirs)]
        yield f"{counts[0]} and {counts[1]} directories were measured at once."
    if mine.size != theirs.size:
        yield f"Files hold {format_bytes(mine.size)} and {format_bytes(theirs.size)}."
    if mine.write_mode != theirs.write_mode:
        yield f"Writes are {mine.write_mode} and {theirs.write_mode}."


def _sizes(transfers: Sequence[int]) -> str:
    """Return tensor sizes as text."""
    return ", ".join(map(format_bytes, transfers)) or "sizes not recorded"
