"""The rows of a sweep's tables: one per slice, per setting, or per setting that two sweeps share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measurements import RoundSlice, Sample, operation_ratios
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
    """Return the tensor sizes in bytes that two sweeps have both moved."""
    return {m.sample.transfer for m in measured} & {m.sample.transfer for m in other}


def shared_rows(measured: Sequence[RoundSlice], other: Sequence[RoundSlice]) -> list[Row]:
    """Return one row per setting and operation that two sweeps measured: medians in GB/s and their ratio.

    Only tensor sizes that both have moved are used; all sizes if they share none.
    """
    sizes = shared_sizes(measured, other)
    rates, other_rates = _medians(measured, sizes), _medians(other, sizes)
    return [
        {
            "operation": operation,
            **_config_columns(config),
            "gb_s": rate / 1e9,
            "other_gb_s": other_rates[config, operation] / 1e9,
            "ratio": rate / other_rates[config, operation],
        }
        for (config, operation), rate in rates.items()
        if (config, operation) in other_rates
    ]


def _medians(measured: Iterable[RoundSlice], sizes: Collection[int]) -> dict[tuple[AioConfig, str], float]:
    """Return {(setting, operation): median bytes per second} at some tensor sizes; at all if `sizes` is empty."""
    rates: dict[tuple[AioConfig, str], list[float]] = defaultdict(list)
    for m in measured:
        if not sizes or m.sample.transfer in sizes:
            rates[m.sample.config, m.sample.operation].append(m.sample.rate)
    return {key: median(setting_rates) for key, setting_rates in rates.items()}


def _config_columns(config: AioConfig) -> dict[str, int | bool]:
    """Return the columns of a setting."""
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "use_gds"}


def _setting_row(config: AioConfig, operation: str, samples: list[Sample], ratios: Mapping[int, float]) -> Row:
    """Return the row of a setting in one direction; `ratios` is {round: rate relative to the control}."""
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
    """Return the row of one slice."""
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
