"""The world map shaded by predicted seconds."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.analysis.make_world_map import world_map
from dsexplore._internal.analysis.running_times import RunningTimes, predicted_times
from dsexplore._internal.analysis.step_timeline import Sizes
from dsexplore._internal.analysis.world_map import Box, Shade, WorldMap
from dsexplore._internal.cost.cluster import HardwareLike
from dsexplore._internal.cost.step.prediction import Prediction, predict
from dsexplore._internal.trace.tables import Tables


def predicted_world_map(
    tables: Tables,
    hardware: HardwareLike,
    ranks_per_node: int | None = None,
    sizes: Sizes = "wire",
    axis: str | None = None,
    shade: Shade = "seconds",
) -> WorldMap:
    """Build the map of a trace's world with the seconds of one predicted step; see `Trace.world_map`.

    Each box of the map holds the ranks that the prediction takes to share the fast links: a node, or an NVLink domain.

    Raises:
        UsageError: as `analysis.world_map.world_map`, no such hardware, or a trace without costs.
    """
    prediction = predict(tables, hardware, ranks_per_node=ranks_per_node)
    box: Box = "node" if prediction.cluster.domain_kind == "node" else "domain"
    return world_map(tables, prediction.ranks_per_domain, sizes, axis, shade, times_of(prediction), box)


def times_of(prediction: Prediction) -> RunningTimes:
    """Return when each collective of the predicted step runs on its rank's streams; other steps have no times."""
    rows = [
        (rank, span.seq, span.start, span.end)
        for rank, spans in prediction.spans_by_rank().items()
        for span in spans
        if span.kind == "communication" and span.seq >= 0
    ]
    schema = {"rank": pl.Int32, "seq": pl.Int64, "begin": pl.Float64, "until": pl.Float64}
    spans = pl.DataFrame(rows, schema=schema, orient="row").unique(["rank", "seq"], keep="first", maintain_order=True)
    machine = prediction.cluster
    ranks = f"{prediction.ranks_per_domain} ranks in each {machine.domain_kind}"
    words = f"predicted on {machine.title} with {ranks}, of one step"
    return predicted_times(prediction.tables, spans, words)
