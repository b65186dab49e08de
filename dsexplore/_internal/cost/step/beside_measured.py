"""A predicted step compared with a measured one, module by module."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from dsexplore._internal.analysis.skew import skew
from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.step.prediction import Prediction, predict
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds

_TURNS, _CLOSE = 50, 1e-4


@names_arguments
def with_measured_compute(cluster: Cluster, trace: Trace, seconds: float) -> Cluster:
    """Scale a cluster's compute, memory and launches so that a step without communication takes the measured time.

    All three have the same factor, so the predicted shares of the modules stay the same.

    Args:
        cluster: the cluster to scale, such as that of a calibration.
        trace: of the step, with costs.
        seconds: of one step on a rank whose collectives send nothing and return immediately, while as many ranks
            compute as in the real step.

    Raises:
        UsageError: seconds that are no time, or a trace without costs.
    """
    if not 0 < seconds < float("inf"):
        raise UsageError(f"seconds={seconds!r} is not how long a step computes: give a number above 0")
    alone = replace(trace.tables, events=trace.tables.events.clear())
    scaled = cluster
    for _ in range(_TURNS):
        factor = seconds / predict(alone, scaled).expected_step
        if abs(factor - 1) < _CLOSE:
            break
        scaled = _slowed(scaled, factor)
    return scaled


def _slowed(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with all kernels slowed down by `factor`."""
    dense = {dtype: rate / factor for dtype, rate in cluster.compute.dense.items()}
    return replace(
        cluster,
        compute=replace(cluster.compute, dense=dense),
        memory=replace(cluster.memory, bandwidth=cluster.memory.bandwidth / factor),
        launch_overhead=cluster.launch_overhead * factor,
    )


_KEYS = ("module", "phase")
COLUMNS: dict[str, pl.DataType] = {
    "module": pl.String(),
    "phase": pl.String(),
    "communication": pl.Float64(),  # seconds, predicted
    "communication_measured": pl.Float64(),
    "exposed": pl.Float64(),  # predicted, with its range
    "exposed_low": pl.Float64(),
    "exposed_high": pl.Float64(),
    "exposed_measured": pl.Float64(),  # seconds for which the program waited for collectives; null: unknown
    "compute": pl.Float64(),  # predicted, with what the CPU makes the GPU wait for
    "between_measured": pl.Float64(),  # seconds between two collectives, of the module that called the second one
    "off": pl.Float64(),  # predicted less measured: exposed + compute; null where one of these is unknown
}
"""One row per module and phase of a step; seconds are those of one step."""


@names_arguments
def beside(prediction: Prediction, measured: Trace) -> pl.DataFrame:
    """Return predicted and measured seconds per module and phase, the largest difference first.

    Args:
        prediction: of the program.
        measured: a trace of the same program on real ranks. Several steps are averaged, without the first, in which
            programs still set up.

    Returns:
        columns `COLUMNS`.

    Raises:
        UsageError: the trace has no measured times.
    """
    of_rank = _counted(prediction, measured)
    seconds = _measured(of_rank).with_columns(pl.col(pl.Float64) / of_rank["step"].n_unique())
    predicted = prediction.by_module().select(
        *_KEYS,
        "communication",
        "exposed",
        "exposed_low",
        "exposed_high",
        compute=pl.col("compute") + pl.col("idle"),
    )
    joined = _filled(predicted.join(seconds, on=list(_KEYS), how="full", coalesce=True))
    off = pl.col("exposed") + pl.col("compute") - pl.col("exposed_measured") - pl.col("between_measured")
    by_size = pl.col("off").abs()
    return joined.with_columns(off=off).select(list(COLUMNS)).sort(by_size, descending=True, nulls_last=True)


def measured_sentence(prediction: Prediction, measured: Trace) -> str:
    """Return how long a step took where it was measured, whether that is as predicted, and which ranks were late.

    From the first collective of a step to that of the next one; of a single step, to the end of its last.

    Args:
        prediction: of the program.
        measured: as `beside` takes it.
    """
    of_rank = _counted(prediction, measured)
    starts = of_rank.group_by("step").agg(pl.col("start").min(), pl.col("end").max()).sort("step")
    first, count = starts["start"][0], starts.height
    last = starts["start"][-1] if count > 1 else starts["end"][0]
    seconds = (last - first) / max(count - 1, 1) / 1e9
    until = "the next step's" if count > 1 else "the end of its last"
    step = prediction.step
    than = (
        "within the predicted range"
        if step.low <= seconds <= step.high
        else (f"{'longer' if seconds > step.high else 'shorter'} than the predicted {step}")
    )
    late = skew(measured.tables)
    why = f" {late.verdict()}" if late.late_ranks else ""
    return f"Measured: {format_seconds(seconds)} from a step's first collective to {until}, {than}.{why}"


def _counted(prediction: Prediction, measured: Trace) -> pl.DataFrame:
    """Return a rank's measured events: those of the predicted one where it was recorded, without the first step."""
    events = measured.events.filter(pl.col("phase") != "start-up")
    if not measured_time.is_timed(events):
        raise UsageError("this trace has no measured times to stand beside a prediction: record it on real ranks")
    rank = prediction.rank if prediction.rank in events["rank"] else events["rank"][0]
    of_rank = events.filter(rank=rank)
    steps = of_rank["step"].unique().sort()
    counted = steps[1:] if len(steps) > 1 else steps
    return of_rank.filter(pl.col("step").is_in(counted.implode()))


def _filled(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a join with 0 s where a side has none; seconds of an unknown wait stay null."""
    unknown = pl.col("communication_measured").is_not_null() & pl.col("exposed_measured").is_null()
    return rows.with_columns(
        pl.when(~unknown).then(pl.col("exposed_measured").fill_null(0.0)).alias("exposed_measured"),
        pl.col(pl.Float64).exclude("exposed_measured").fill_null(0.0),
    )


def _measured(events: pl.DataFrame) -> pl.DataFrame:
    """Sum the seconds of one rank's events by module and phase, in program order."""
    lasted = (pl.col("end") - pl.col("start")) / 1e9
    stood = pl.when(pl.col("is_async")).then(pl.col("waited") / 1e9).otherwise(lasted)
    timed = events.sort("seq").with_columns(communication_measured=lasted.fill_null(0.0), exposed_measured=stood)
    # What the program did not wait for, since the collective before was called.
    since = (pl.col("start") - pl.col("start").shift(1).over("step")) / 1e9
    before = pl.col("exposed_measured").fill_null(0.0).shift(1).over("step")
    between = (since - before).clip(lower_bound=0.0).fill_null(0.0)
    timed = timed.with_columns(between_measured=between)
    by_owner = timed.group_by(pl.col("owner").alias("module"), "phase", maintain_order=True).agg(
        pl.col("communication_measured").sum(),
        pl.when(pl.col("exposed_measured").null_count() == 0).then(pl.col("exposed_measured").sum()),
    )
    by_trigger = timed.group_by(pl.col("trigger").alias("module"), "phase", maintain_order=True).agg(
        pl.col("between_measured").sum()
    )
    return _filled(by_owner.join(by_trigger, on=list(_KEYS), how="full", coalesce=True))
