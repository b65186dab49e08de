"""Tables of a predicted step: its seconds by module, by mesh axis, by rank, and span by span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.pipeline_times import RankTimes
from dsexplore._internal.cost.step.stream_simulation import SECONDS_OF_MODULES, Span

SecondsByModule = Mapping[tuple[str, str], Mapping[str, float]]
"""{(module, phase): {one of `SECONDS_OF_MODULES`: seconds}}."""


def module_frame(low: SecondsByModule, expected: SecondsByModule, high: SecondsByModule) -> pl.DataFrame:
    """Return the table of `Prediction.by_module`.

    Args:
        low: seconds with all times at their low ends.
        expected: with the expected ones.
        high: at their high ends.
    """
    rows = [
        {
            "module": module,
            "phase": phase,
            **{name: expected[module, phase][name] for name in SECONDS_OF_MODULES},
            **{
                f"{name}_{suffix}": part[module, phase][name]
                for name in ("compute", "exposed")
                for suffix, part in (("low", low), ("high", high))
            },
        }
        for module, phase in expected
    ]
    kinds = {"module": pl.String, "phase": pl.String}
    names = [*kinds, *SECONDS_OF_MODULES, "compute_low", "compute_high", "exposed_low", "exposed_high"]
    return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in names})


def axis_frame(spans: Sequence[Span]) -> pl.DataFrame:
    """Return the table of `Prediction.by_axis`, the axis and op with most exposed seconds first."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for span in spans:
        if span.kind == "communication":
            total = totals[span.axis, span.op]
            total[0] += 1
            total[1] += span.seconds
        elif span.kind == "exposed" and span.op != "recv":
            totals[span.axis, span.op][2] += span.seconds
    rows = [(axis, op, int(count), all_of_it, exposed) for (axis, op), (count, all_of_it, exposed) in totals.items()]
    columns = {
        "axis": pl.String,
        "op": pl.String,
        "count": pl.Int64,
        "communication": pl.Float64,
        "exposed": pl.Float64,
    }
    return pl.DataFrame(rows, schema=columns, orient="row").sort("exposed", "communication", descending=True)


def rank_frame(ranks: Sequence[RankTimes]) -> pl.DataFrame:
    """Return the table of `Prediction.by_rank`."""
    rows = [
        (
            rank.program.rank,
            rank.step(Estimate.EXPECTED),
            rank.played(Estimate.EXPECTED).compute,
            rank.played(Estimate.EXPECTED).exposed,
            rank.played(Estimate.EXPECTED).idle + rank.bubble(Estimate.EXPECTED),
        )
        for rank in ranks
    ]
    columns = {"rank": pl.Int64, **dict.fromkeys(("step", "compute", "exposed", "idle"), pl.Float64)}
    return pl.DataFrame(rows, schema=columns, orient="row")


def span_frame(spans: Sequence[Span]) -> pl.DataFrame:
    """Return the table of `Prediction.timeline`."""
    names = ("stream", "start", "end", "kind", "module", "phase", "op", "axis")
    rows = [tuple(getattr(span, name) for name in names) for span in spans]
    types = {name: pl.Float64 if name in ("start", "end") else pl.String for name in names}
    return pl.DataFrame(rows, schema=types, orient="row")
