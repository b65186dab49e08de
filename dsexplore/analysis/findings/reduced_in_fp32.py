"""FSDP reduces gradients in float32, of parameters that it gathers in 16 bits: twice the bytes."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.trace.causes import FSDP_REDUCES, is_fsdp1
from dsexplore.units import format_bytes

_HALF = ["bfloat16", "float16"]


def reduced_in_fp32(evidence: Evidence) -> Iterator[Finding]:
    """Yield float32 reductions of FSDP groups whose parameters are gathered in 16 bits."""
    of_fsdp = evidence.events.filter(pl.col("cause").str.starts_with("FSDP"))
    gathers = of_fsdp.filter((pl.col("op") == "all_gather") & pl.col("dtype").is_in(_HALF))
    halves = gathers["owner"].unique()
    reduced = of_fsdp.filter(
        pl.col("cause").is_in(FSDP_REDUCES)
        & pl.col("op").is_in(["reduce_scatter", "all_reduce"])
        & (pl.col("dtype") == "float32")
        & pl.col("owner").is_in(halves.implode())
    )
    yield from evidence.findings(
        "reduced_in_fp32", reduced, _why, _change, spare=0.5, spare_calls=0, by=("place", "op", "axis")
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} in float32 of gradients of 16-bit parameters: "
        "twice the bytes, for a more exact sum"
    )


def _change(group: Group) -> str:
    policy = "MixedPrecision" if is_fsdp1(group.causes) else "MixedPrecisionPolicy"
    return f"{policy}(reduce_dtype=torch.bfloat16), if the loss does not mind: many recipes sum in float32 on purpose"
