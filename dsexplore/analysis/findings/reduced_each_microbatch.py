"""Gradients are reduced after every microbatch of a step, where reducing their sum once would do."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import torch

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.trace.causes import FSDP_REDUCES, is_fsdp1

_ITEM = pl.col("dtype").replace_strict(
    {str(t).removeprefix("torch."): t.itemsize for t in vars(torch).values() if isinstance(t, torch.dtype)},
    default=1,
    return_dtype=pl.Int64,
)


def reduced_each_microbatch(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradient reductions of DDP buckets and FSDP groups that run more than once per step."""
    yield from _of_fsdp(evidence)
    yield from _of_ddp(evidence)


def _of_fsdp(evidence: Evidence) -> Iterator[Finding]:
    sent = evidence.events.filter(
        pl.col("cause").is_in(FSDP_REDUCES) & pl.col("op").is_in(["reduce_scatter", "all_reduce"])
    )
    lane = ("rank", "step", "owner", "op", "group", "dtype", "shape")
    yield from evidence.findings(
        "reduced_each_microbatch",
        sent.filter(pl.len().over(lane) > 1),
        lambda group: _why(group, evidence),
        _change_fsdp,
        spare=1 - 1 / pl.len().over(lane),
        by=("place", "op", "axis"),
    )


def _of_ddp(evidence: Evidence) -> Iterator[Finding]:
    """Yield DDP buckets of ranks that reduce more elements per step than they have gradients.

    Bucket sizes do not tell repetition, since two buckets (as of equal layers) may have one size.
    """
    buckets = evidence.events.filter(pl.col("cause") == "DDP gradient bucket")
    if buckets.is_empty():
        return
    learnt = evidence.tables.parameters.filter(pl.col("requires_grad") & (pl.col("shared_with") == ""))
    elements = dict(
        learnt.with_columns((pl.col("local_bytes") // _ITEM).alias("elements"))
        .group_by("rank")
        .agg(pl.col("elements").sum())
        .iter_rows()
    )
    held = pl.col("rank").replace_strict(elements, default=0, return_dtype=pl.Int64)
    sent = (pl.col("message_bytes") // _ITEM).sum().over("rank", "step")
    times = (sent / held).round()
    yield from evidence.findings(
        "reduced_each_microbatch",
        buckets.filter((held > 0) & (times > 1)),
        lambda group: _why(group, evidence),
        _change_ddp,
        spare=1 - 1 / times,
        by=("place", "op", "axis"),
    )


def _why(group: Group, evidence: Evidence) -> str:
    what = f"{group.calls} in a step, where the gradients are reduced after each of its microbatches"
    if evidence.steps_are_marked:
        return what
    return f"{what}; if these are several steps, mark them: trace.step() after each"


def _change_ddp(_group: Group) -> str:
    return "with ddp.no_sync(): around forward and backward of all microbatches of a step but the last"


def _change_fsdp(group: Group) -> str:
    switch = "with model.no_sync(): around" if is_fsdp1(group.causes) else "model.set_requires_gradient_sync(False) for"
    return (
        f"{switch} all microbatches but the last, where memory for whole gradients "
        f"is left; {group.place} then reduces their sum once"
    )
