"""The trace of a pipeline's step with more or fewer microbatches than it has.

But for the first ones, each pair of a backward and a forward of a 1F1B schedule does what the one before it did, with
its messages. Two pairs are compared, row by row; where they are equal but for the numbers that count on, one of them is
repeated, or others are dropped. A pair is what lies between two receives: of gradients, or on the last stage of
activations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from dsexplore.trace.tables import Tables
from dsexplore.worlds.repeats.layer_runs import CannotSkip
from dsexplore.worlds.repeats.repeated_rows import Cut, repeat, with_buffers

_PARTS = ("events", "kernels", "memory")


def with_microbatches(tables: Tables, count: int) -> Tables | None:
    """Return the trace of the same step with another number of microbatches.

    Args:
        tables: of one or more ranks; `TraceInfo.schedule` says how many microbatches they have.
        count: the wanted number.

    Returns:
        None if the schedule is not 1F1B, if no two microbatches in a row are equal, or if so few are wanted that no
        equal ones would be left.
    """
    described = json.loads(tables.info.schedule) if tables.info.schedule else {}
    if described.get("schedule") != "Schedule1F1B":
        return None
    present = int(described["microbatches"])
    if count == present:
        return tables
    try:
        ranks = [_of_rank(tables, rank, present, count) for rank in tables.kernels["rank"].unique().sort()]
    except CannotSkip:
        return None
    # The list of actions is that of the number before.
    schedule = json.dumps({**described, "microbatches": count, "order": {}})
    calls = pl.when(pl.col("calls") % present == 0).then(pl.col("calls") // present * count).otherwise("calls")
    return replace(
        tables,
        **{name: pl.concat([frames[name] for frames in ranks]) for name in _PARTS},
        modules=tables.modules.with_columns(calls.cast(pl.Int64).alias("calls")),
        info=replace(tables.info, schedule=schedule),
    )


def _of_rank(tables: Tables, rank: int, present: int, count: int) -> dict[str, pl.DataFrame]:
    """Return the tables of one rank that have rows for each microbatch, by name."""
    frames = {name: getattr(tables, name).filter(rank=rank) for name in _PARTS}
    events, memory, more = frames["events"], frames["memory"], count - present
    begins = _begins(events, "backward", present) or _begins(events, "forward", present)
    if len(begins) < 4 + max(0, -more):
        raise CannotSkip
    # What is computed stands before the event that is issued next.
    segments = memory["before"].search_sorted(pl.Series(begins), side="right")
    cuts = [Cut(seq, memory["segment"][segment]) for seq, segment in zip(begins, segments, strict=True)]
    repeated, _, _ = repeat(frames, cuts, {3: more})
    return {**repeated, "memory": with_buffers(repeated["memory"], repeated["events"], count, more)}


def _begins(events: pl.DataFrame, phase: str, microbatches: int) -> Sequence[int]:
    """Return the seq of the first receive of each microbatch; empty if they cannot be told apart."""
    found = events.filter(op="recv", phase=phase)["seq"].to_list()
    each, left = divmod(len(found), microbatches)
    return found[::each] if each and not left else []
