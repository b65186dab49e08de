"""Finds the ranks that come late repeatedly.

Each rank is a little early or late. So a rank is named only in two cases:

* It was late at least `LEAST` times, and the probability that this is chance is below `CHANCE`. Two things are
  unlikely: that so many of the late arrivals are of this rank, and that it was late by nearly the same time in each.
  The second counts only for lateness far above the jitter. Arrivals with such lateness are examined first, then all.
* No rank is late like that, and one was so late that it cost a fifth of the measured time.

The jitter is how much ranks usually vary. For each rank, half the width of the shortest range is taken that holds a
third of its deviations, since a rank may be late in two of three collectives. The jitter is the median over ranks.

Worked example: four ranks reduce six times, and vary by 2 ms. Rank 1 is late by 198 to 202 ms each time. The
probability that all six late arrivals are of one rank is 1 in 4⁵, and that all lie within 2 ms of 200 is 1 in 100⁵.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.arrivals import COMES_LATE

BEYOND_JITTER = 15
"""Factor on the jitter above which lateness is more than jitter."""
LEAST = 3
"""Number of late arrivals from which on a rank is late repeatedly."""
CHANCE = 1e-4
"""Probability of chance below which a rank is late repeatedly."""
LEAST_SHARE = 0.01
"""Share of the measured time that a rank which is late repeatedly must have cost."""
SINGLE_SHARE, SINGLE_LEAST = 0.2, 0.1
"""For a rank that is not late repeatedly: the share of the measured time that it must have cost, and the seconds of
each late arrival. A busy host stops any process for some tens of milliseconds now and then."""
NEARLY_ALL = 0.75
"""The share of all ranks' lateness that such a rank must have."""
_ALWAYS = 0.8
"""Share of the steps from some step on in which a rank must be late to be late since then."""
_FINEST = 1e-3
"""Share of the lateness below which a spread is taken as this share: closer agreement is coincidence."""

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LateRank:
    """A rank that came late, and what that cost."""

    rank: int
    late_by: float
    """Seconds: the median of its late arrivals."""
    least: float
    """Seconds: the 10th percentile of its late arrivals."""
    most: float
    """Seconds: the 90th percentile of its late arrivals."""
    late: int
    """Number of collectives to which it was late."""
    collectives: int
    """Number of collectives of the same ops and groups that it took part in."""
    ops: tuple[str, ...]
    """The ops at which it was late, that with most late arrivals first."""
    since_step: int | None
    """The step from which on it was late in nearly all steps, and in none before; None if there is none, or if the
    program does not mark its steps."""
    since_number: int | None
    """If steps are not marked, the number, from 1, of the collective since which it is late; None if there is none."""
    source: str
    """The line of the collective to which it came late most often; empty if it is unknown."""
    axis: str
    """The axis of those collectives' groups; empty if they have none, or several."""
    module: str
    """The module of the collective to which it came late most often; empty if there is none."""
    transfer: tuple[float, float]
    """Seconds: the 10th and the 90th percentile of the transfers of those collectives."""
    waited: float
    """Seconds that the other ranks waited in them, in sum."""
    rows: npt.NDArray[np.int64] = field(repr=False, compare=False)
    """The collectives to which it came late, on all ranks, as positions in the trace's events."""


def late_ranks(arrived: pl.DataFrame) -> tuple[LateRank, ...]:
    """Return the ranks that came late, those first for which the others waited longest.

    Args:
        arrived: the arrivals of all ranks, see `analysis.arrivals`.
    """
    late = arrived.filter(COMES_LATE)
    if late.is_empty():
        return ()
    span = float(arrived.select((pl.col("begin") + pl.col("took")).max()).item())
    beyond = BEYOND_JITTER * jitter(arrived)
    named: dict[int, pl.DataFrame] = {}
    for examined in (late.filter(pl.col("late_by") > beyond), late):
        chosen = arrived.filter(pl.col("instance").is_in(examined["instance"].implode()))
        for (rank,), of_rank in examined.group_by("rank"):
            if rank not in named and _is_often(of_rank, chosen, examined, beyond=beyond, span=span):
                named[rank] = of_rank
    if not named:
        long = late.filter(pl.col("late_by") >= SINGLE_LEAST)
        named = {rank: of_rank for (rank,), of_rank in long.group_by("rank") if _is_costly(of_rank, late, span)}
    described = [_described(rank, of_rank, arrived) for rank, of_rank in named.items()]
    return tuple(sorted(described, key=lambda rank: (-rank.waited, rank.rank)))


def jitter(arrived: pl.DataFrame) -> float:
    """Return the usual variation of arrivals in seconds: the median over ranks of the `_half_width` of deviations."""
    of_ranks = arrived.group_by("rank").agg(pl.col("deviation").sort())
    widths = sorted(_half_width(deviations.to_numpy()) for deviations in of_ranks["deviation"])
    return widths[(len(widths) - 1) // 2]


def _half_width(ordered: Seconds) -> float:
    """Return half the width of the shortest range that holds a third of the values.

    Args:
        ordered: the values in ascending order, shape (n,).
    """
    third = math.ceil(len(ordered) / 3)
    return float((ordered[third - 1 :] - ordered[: len(ordered) - third + 1]).min()) / 2


def _is_often(late: pl.DataFrame, chosen: pl.DataFrame, of_all: pl.DataFrame, beyond: float, span: float) -> bool:
    """Return True if a rank is late repeatedly, by more than chance explains and at some cost.

    Args:
        late: the late arrivals of the rank.
        chosen: all arrivals at the collectives with a late arrival.
        of_all: the late arrivals among these.
        beyond: seconds above which lateness is far more than the jitter.
        span: the measured time in seconds.
    """
    by = np.sort(late["late_by"].to_numpy())
    if len(by) < LEAST or by.sum() < LEAST_SHARE * span:
        return False
    collectives = chosen.filter(pl.col("rank") == late["rank"][0]).height
    log_chance = _log_choices(collectives, len(by)) + (len(by) - 1) * math.log(of_all.height / chosen.height)
    middle = float(np.median(by))
    if by[0] > beyond and middle > 2 * beyond:
        near = float(np.sort(np.abs(by - middle))[len(by) - 1 - len(by) // 4])
        log_chance += (len(by) - 1) * math.log(min(max(near / middle, _FINEST), 1.0))
    return log_chance < math.log(CHANCE)


def _log_choices(n: int, k: int) -> float:
    """Return the logarithm of the binomial coefficient n choose k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _is_costly(late: pl.DataFrame, of_all: pl.DataFrame, span: float) -> bool:
    """Return True if a rank's few late arrivals make up nearly all lateness, and cost much of the time.

    Args:
        late: the late arrivals of the rank.
        of_all: the late arrivals of all ranks.
        span: the measured time in seconds.
    """
    total = float(late["late_by"].sum())
    return total >= NEARLY_ALL * float(of_all["late_by"].sum()) and total >= SINGLE_SHARE * span


def _described(rank: object, late: pl.DataFrame, arrived: pl.DataFrame) -> LateRank:
    """Describe a late rank by its late arrivals and the arrivals of all ranks."""
    ops = late["op"].value_counts(sort=True)["op"].to_list()
    arrivals = arrived.filter(pl.col("rank") == rank).join(
        late.select("op", "same_group").unique(), on=["op", "same_group"]
    )
    together = arrived.filter(pl.col("instance").is_in(late["instance"].implode()))
    by, durations = late["late_by"].to_numpy(), late["duration"].to_numpy()
    least, most = np.quantile(by, (0.1, 0.9))
    waited = float((together["took"] - together["duration"]).sum())
    usual = late.group_by("source", "owner").len().sort("len", "source", descending=[True, False]).row(0, named=True)
    axes = late["axis"].unique().to_list()
    is_late = arrivals.sort("seq").select("step", is_late=pl.col("row").is_in(late["row"].implode()))
    of_steps = is_late.group_by("step", maintain_order=True).agg(pl.col("is_late").any())
    since = _since((of_steps if of_steps.height > 1 else is_late)["is_late"].to_numpy())
    return LateRank(
        rank=int(rank),  # type: ignore[call-overload]
        late_by=float(np.median(by)),
        least=float(least),
        most=float(most),
        late=len(by),
        collectives=arrivals.height,
        ops=tuple(ops),
        since_step=int(of_steps["step"][since]) if since is not None and of_steps.height > 1 else None,
        since_number=since + 1 if since is not None and of_steps.height == 1 else None,
        source=(usual["source"] or "").partition(" ← ")[0],
        axis=(axes[0] or "") if len(axes) == 1 else "",
        module=usual["owner"] or "",
        transfer=(float(np.quantile(durations, 0.1)), float(np.quantile(durations, 0.9))),
        waited=waited,
        rows=together["row"].cast(pl.Int64).to_numpy(),
    )


def _since(is_late: npt.NDArray[np.bool_]) -> int | None:
    """Return the position from which on nearly all are late; None if that is the first, or there is none.

    Args:
        is_late: one value per step or collective, in program order.
    """
    first = int(np.argmax(is_late))
    return first if first and is_late[first:].mean() >= _ALWAYS else None
