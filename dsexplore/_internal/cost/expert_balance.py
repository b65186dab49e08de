"""How unevenly tokens are sent to the ranks of experts: as a trace measured it, and as the input of a prediction.

An expert layer sends tokens to the ranks of their experts and back, each with an all_to_all: what runs between the two
is what the experts compute. All ranks wait for the one that has most tokens, so it decides: its messages are as many
times larger than the mean, and so is what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from dsexplore._internal.analysis.uneven_sends import sent_to_ranks
from dsexplore._internal.cost.step.rank_program import Collective, Item, Kernels
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.trace import Trace

_COUNTS = 0.02
"""Messages of less than this part of the largest exchange are of numbers of tokens, and not of tokens."""
_ARRIVING = ("forward", "other")
"""Phases in which tokens go to their experts; ``other`` is outside of any module."""
LOAD: dict[str, pl.DataType] = {
    "axis": pl.String(),
    "rank": pl.Int32(),  # of the experts
    "tokens": pl.Int64(),  # that the recorded ranks sent to it in forward, in all their steps
    "bytes": pl.Int64(),
}


@names_arguments
def expert_load(trace: Trace) -> pl.DataFrame:
    """Return the bytes sent to each rank of experts, if the trace records them; columns: `LOAD`.

    Counted are the first of each two all_to_alls with uneven splits, by axis, which bring the tokens to their experts.
    Where only some ranks were recorded, it is what these sent.

    Examples:
        >>> with dsexplore.commtrace(mesh="ep=2") as trace:
        ...     _ = dist.all_to_all_single(torch.empty(4, 8), torch.ones(4, 8), [2, 2], [3, 1])
        ...     trace.step()
        >>> expert_load(trace)["tokens"].to_list()
        [3, 1]
    """
    tables = trace.tables
    uneven = tables.events.filter(
        IN_STEPS, pl.col("op") == "all_to_all", pl.col("send_splits").is_not_null(), pl.col("phase").is_in(_ARRIVING)
    ).sort("rank", "seq")
    arriving = uneven.filter(pl.int_range(pl.len()).over("rank", "step", "group") % 2 == 0)
    return sent_to_ranks(tables, arriving).sort("axis", "rank").select(pl.col(k).cast(v) for k, v in LOAD.items())


@names_arguments
def imbalance(load: pl.DataFrame) -> float:
    """Return the load of the busiest rank over the mean, for the worst axis; 1 if it is unknown.

    Of an axis with unknown bytes, tokens count.

    Examples:
        >>> imbalance(pl.DataFrame([("ep", 0, 30, 60), ("ep", 1, 10, 20)], schema=LOAD, orient="row"))
        1.5
    """
    known = pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes")).otherwise(pl.col("tokens"))
    ratios = load.group_by("axis").agg(ratio=known.max() / known.mean())["ratio"]
    return float(max([1.0, *ratios.drop_nulls().drop_nans()]))


def of_busiest_rank(items: Sequence[Item], factor: float, ridge: float) -> list[Item]:
    """Return the work of the rank of experts that has `factor` times as many tokens as the mean.

    What runs between the first and the second all_to_all of each two on an axis takes that many times as long, but for
    products of so few tokens that reading the experts is what takes long; the exchanges' own times are larger already.

    Args:
        items: the work of the mean rank.
        factor: 1 or more.
        ridge: FLOPs of a product in the time in which a byte is read.
    """
    exchanges = [item for item in items if isinstance(item, Collective) and item.op == "all_to_all"]
    largest = {exchange.axis: 0 for exchange in exchanges}
    for exchange in exchanges:
        largest[exchange.axis] = max(largest[exchange.axis], exchange.message_bytes)
    inside: set[str] = set()
    done: list[Item] = []
    for item in items:
        if isinstance(item, Collective):
            if item.op == "all_to_all" and item.message_bytes >= _COUNTS * largest[item.axis]:
                inside ^= {item.axis}
        elif isinstance(item, Kernels) and inside:
            low, expected, high = item.seconds
            longer = _longer(item.shape, factor, ridge)
            item = replace(item, seconds=(low * longer, expected * longer, high * longer))
        done.append(item)
    return done


def _longer(shape: Sequence[int], factor: float, ridge: float) -> float:
    """Return how many times as long a kernel takes with `factor` times as many rows; of 16 bits where it is a product.

    Args:
        shape: batch, m, n, k; empty unless it is a product whose shape is known.
        factor: on m.
        ridge: as for `of_busiest_rank`.
    """
    if len(shape) != 4:
        return factor
    _, rows, n, k = shape
    before, after = (max(m * n * k / ridge, m * k + n * k + m * n) for m in (rows, rows * factor))
    return after / before
