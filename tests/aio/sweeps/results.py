"""Results of sweeps with given rates."""

from __future__ import annotations

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.measurements import Conditions, Operation, Phase, RoundSlice, Sample
from dsexplore._internal.aio.sweeps.references import Reference
from dsexplore.aio import AioConfig, SweepResult

CONTROL, DEEP = AioConfig(), AioConfig(queue_depth=32)


def sample(config: AioConfig, operation: Operation, gb_s: float) -> Sample:
    nbytes = 1 << 30
    seconds = nbytes / (gb_s * 1e9)
    return Sample(
        operation, config, nbytes, seconds, 0.01, 0.0 if operation == "read" else seconds, 1e-3, 2e-3, 3e-3, 9e-3
    )


def result_of(rates: list[dict[AioConfig, tuple[float, float]]], phase: Phase = "finals") -> SweepResult:
    measured = tuple(
        RoundSlice(phase, number, sample(config, operation, rate))
        for number, by_config in enumerate(rates)
        for config, pair in by_config.items()
        for operation, rate in zip(("read", "write"), pair, strict=True)
    )
    disk = Disk("/data/x", "ext4", "/data", "/dev/nvme0n1", "FAST", "disk", 1 << 40, True, None, 512, 512)
    conditions = Conditions(
        "linux-aio",
        {"io_uring": "forbidden"},
        "tensor",
        "overwrite",
        1 << 30,
        0.5,
        60.0,
        0.15,
        1.0,
        0.0,
        "Linux",
        "now",
    )
    references = (Reference("ring", "read", DEEP, (3.1e9, 3.3e9, 3.2e9), "ring"),)
    return SweepResult(disk, conditions, measured, references, bytes_written=5 << 30, elapsed=42.0)


def better_result() -> SweepResult:
    """Return a result whose deep queue is faster than the default by a half in each of four rounds."""
    return result_of([{CONTROL: (2.0, 1.0), DEEP: (3.0, 1.5)}, {CONTROL: (2.1, 1.1), DEEP: (3.15, 1.65)}] * 2)
