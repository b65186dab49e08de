"""A sweep as tables: one row per slice, per setting, or per setting that two sweeps share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measure import Sample
from dsexplore._internal.aio.sweeps.measurements import RoundSlice, operation_ratios
from dsexplore._internal.aio.sweeps.statistics import median, ratio_interval

Row = dict[str, Any]


def slice_rows(measured: Iterable[RoundSlice]) -> list[Row]:
    """Return one row per slice, in the order of measurement."""
    return [_slice_row(m) for m in measured]


def setting_rows(measured: Sequence[RoundSlice], control: AioConfig) -> list[Row]:
    """Return one row per setting and operation."""
    groups: dict[tuple[AioConfig, str], list[Sample]] = defaultdict(list)
    for m in measured:
        groups[m.sample.config, m.sample.operation].append(m.sample)
    ratios = {operation: operation_ratios(measured, control, operation) for _, operation in groups}
    return [
        _setting_row(config, operation, samples, ratios[operation].get(config, {}))
        for (config, operation), samples in sorted(groups.items(), key=lambda item: item[0])
    ]


def shared_sizes(measured: Iterable[RoundSlice], other: Iterable[RoundSlice]) -> set[int]:
    """Return the bytes of tensors that two sweeps both moved."""
    return {m.sample.transfer for m in measured} & {m.sample.transfer for m in other}


def shared_rows(measured: Sequence[RoundSlice], other: Sequence[RoundSlice]) -> list[Row]:
    """Return one row per setting and operation that both measured: medians in GB/s and their ratio.

    Only tensor sizes that both moved are used; all, if they share none.
    """
    sizes = shared_sizes(measured, other)
    mine, theirs = (
        _medians(m for m in results if not sizes or m.sample.transfer in sizes) for results in (measured, other)
    )
    return [
        {
            "operation": operation,
            **_config_columns(config),
            "gb_s": mine[config, operation] / 1e9,
            "other_gb_s": theirs[config, operation] / 1e9,
            "ratio": mine[config, operation] / theirs[config, operation],
        }
        for config, operation in mine
        if (config, operation) in theirs
    ]


def _medians(measured: Iterable[RoundSlice]) -> dict[tuple[AioConfig, str], float]:
    rates: dict[tuple[AioConfig, str], list[float]] = defaultdict(list)
    for m in measured:
        rates[m.sample.config, m.sample.operation].append(m.sample.rate)
    return {key: median(values) for key, values in rates.items()}


def _config_columns(config: AioConfig) -> dict[str, int | bool]:
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name != "use_gds"}


def _setting_row(config: AioConfig, operation: str, samples: list[Sample], ratios: Mapping[int, float]) -> Row:
    rates = [sample.rate for sample in samples]
    ratio = ratio_interval(list(ratios.values())) if ratios else None
    return {
        "operation": operation,
        **_config_columns(config),
        "gb_s": median(rates) / 1e9,
        "gib_s": median(rates) / 2**30,
        "min_gb_s": min(rates) / 1e9,
        "max_gb_s": max(rates) / 1e9,
        "n": len(rates),
        "durable_gb_s": median([sample.durable_rate for sample in samples]) / 1e9,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio and ratio.n > 1 else None,
        "ratio_high": ratio.high if ratio and ratio.n > 1 else None,
        "p50_ms": median([sample.p50 for sample in samples]) * 1e3,
        "p95_ms": median([sample.p95 for sample in samples]) * 1e3,
        "p99_ms": median([sample.p99 for sample in samples]) * 1e3,
        "max_ms": max(sample.longest for sample in samples) * 1e3,
        "cpu_ms_per_gib": median([sample.cpu_ms_per_gib for sample in samples]),
    }


def _slice_row(m: RoundSlice) -> Row:
    sample = m.sample
    return {
        "phase": m.phase,
        "round": m.round,
        "operation": sample.operation,
        **_config_columns(sample.config),
        "bytes": sample.bytes,
        "seconds": sample.seconds,
        "gb_s": sample.rate / 1e9,
        "gib_s": sample.rate / 2**30,
        "fsync_seconds": sample.fsync_seconds,
        "durable_gb_s": sample.durable_rate / 1e9,
        "cpu_ms_per_gib": sample.cpu_ms_per_gib,
        "p50_ms": sample.p50 * 1e3,
        "p95_ms": sample.p95 * 1e3,
        "p99_ms": sample.p99 * 1e3,
        "max_ms": sample.longest * 1e3,
    }
