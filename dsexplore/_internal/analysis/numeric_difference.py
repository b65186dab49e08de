"""Finds the first tensor in which the values of two recorded runs differ, and the first NaN or infinity of a run.

The runs may be of two plans, two commits or two versions of torch, or two runs of one program.

Runs with the same ranks and tensor sizes are compared rank by rank, bits first. Other runs, such as of two plans, are
compared by whole tensors: over ranks, and over the calls of a module in a step, squared norms and sums are added up. If
the ranks of one run together hold more elements than those of the other, they hold copies.

Worked example: A has an output of 64 elements on one rank, B 64 elements on each of four. B's ranks hold four copies,
so the sum of their squared norms is divided by 4 before it is compared with A's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_count, format_ranks

KEYS = ("step", "phase", "module", "name", "call")
"""Columns of `schema.NUMERICS` that name a tensor, the same on all ranks."""


@dataclass(frozen=True)
class NonFinite:
    """The first tensor with a NaN or an infinity."""

    step: int
    phase: str
    module: str
    name: str
    ranks: tuple[int, ...]
    """The ranks that have one in this tensor."""
    value: str
    """``NaN`` or ``infinity``."""

    def __str__(self) -> str:
        what = {"backward": f"the gradient of its {self.name}", "gradient": f"the gradient of {self.name}"}
        of = what.get(self.phase, f"its {self.name}")
        return (
            f"The first {self.value} is in {self.phase} of step {self.step}, {self.module or 'the model'}, in {of}, on "
            f"{format_ranks(self.ranks)}."
        )


def first_non_finite(numerics: pl.DataFrame) -> NonFinite | None:
    """Return the place of the first NaN or infinity in program order; None if there is none.

    Args:
        numerics: a table with the columns `schema.NUMERICS`.
    """
    wrong = numerics.filter(~(pl.col("min").is_finite() & pl.col("max").is_finite()))
    if wrong.is_empty():
        return None
    row = wrong.sort("step", "seq", "rank").row(0, named=True)
    same = wrong.filter(pl.all_horizontal(pl.col(key) == row[key] for key in KEYS))
    is_nan = bool((same["min"].is_nan() | same["max"].is_nan()).any())
    ranks = tuple(sorted(same["rank"].to_list()))
    step, phase, module, name = (row[key] for key in KEYS[:4])
    return NonFinite(step, phase, module, name, ranks, value="NaN" if is_nan else "infinity")


COLUMNS: dict[str, pl.DataType] = {
    "step": pl.Int32(),
    "phase": pl.String(),
    "module": pl.String(),  # without the root's class; "" for the root
    "name": pl.String(),  # output, or the parameter's own name
    "call": pl.Int32(),
    # Ranks on which it differs beyond rounding; if there are none, in bits. For whole tensors, all that hold a part.
    "ranks": pl.List(pl.Int32()),
    "same_bits": pl.Boolean(),  # the hash and the projection are equal
    "same": pl.Boolean(),  # norm and mean differ by no more than rounding
    "reordered": pl.Boolean(),  # the same bits in another order: the hash is equal, the projection is not
    "norm_before": pl.Float64(),
    "norm_after": pl.Float64(),
    "difference": pl.Float64(),  # the larger one of norm relative to norm, and mean relative to root mean square
}
"""Columns of `NumericDifference.to_frame`; its rows are in program order."""

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""{dtype: relative distance of 1 to the next number}."""
_ROUNDINGS, _MOST = 1000.0, 0.02
"""The multiple of `_EPS` by which a norm may differ due to rounding, and the relative difference that exceeds rounding
in any dtype."""
_OF_LARGEST, _MOST_OF_LARGEST = 8.0, 1e-4
"""The multiple of `_EPS` of the largest values of a phase by which other values may differ due to cancellation, and the
maximum share of those largest values."""
_PHASES = ("no-grad forward", "forward", "backward", "gradient")
"""Phases of summaries, in the order of a step."""


class NumericDifference(Result):
    """The differences between the values of two runs, A before and B after."""

    def __init__(self, before: pl.DataFrame, after: pl.DataFrame) -> None:
        self._before, self._after = before, after

    def __repr__(self) -> str:
        return f"<NumericDifference: {self}>"

    def __str__(self) -> str:
        return " ".join(self.lines())

    def to_frame(self) -> pl.DataFrame:
        """Return one row per tensor that both runs have summarized; columns: `COLUMNS`."""
        return self._rows

    @cached_property
    def by_rank(self) -> bool:
        """True if the runs are compared rank by rank: the same ranks hold tensors of the same sizes."""
        keys = (*KEYS, "rank")
        both = _joined(_named(self._before), _named(self._after), keys)
        same_ranks = set(self._before["rank"].unique()) == set(self._after["rank"].unique())
        return same_ranks and bool((both["count"] == both["count_after"]).all())

    @cached_property
    def _rows(self) -> pl.DataFrame:
        before, after = _named(self._before), _named(self._after)
        if self.by_rank:
            rows = _aggregate_ranks(_judged(_joined(before, after, (*KEYS, "rank"))))
        else:
            rows = _judged(_norms_per_copy(_joined(_whole(before), _whole(after), KEYS)))
        return rows.rename({"norm": "norm_before"}).select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())

    @cached_property
    def first(self) -> dict[str, object] | None:
        """First row of `to_frame` that differs beyond rounding; None if there is none.

        Runs that are compared rank by rank, and differ by rounding only, have the first row that differs in bits. For
        whole tensors, a module counts as equal if a module around it has equal outputs. Gradients of outputs are then
        not compared, as the plans may scale the loss differently.
        """
        if self.by_rank:
            different = [self._rows.filter(~pl.col(same)) for same in ("same", "same_bits")]
            return next((rows.row(0, named=True) for rows in different if rows.height), None)
        rows = self._rows.filter(pl.col("phase") != "backward")
        equal = set(rows.filter(pl.col("same")).select("step", "phase", "module").iter_rows())
        for row in rows.filter(~pl.col("same")).iter_rows(named=True):
            path = row["module"].split(".") if row["module"] else []
            around = [".".join(path[:end]) for end in range(len(path))] if row["phase"] != "gradient" else []
            if not any((row["step"], row["phase"], module) in equal for module in around):
                return row
        return None

    @cached_property
    def same(self) -> bool:
        """True if no tensor differs beyond rounding."""
        row = self.first
        return row is None or bool(row["same"])

    @cached_property
    def same_bits(self) -> bool:
        """True if all tensors are the same to the bit on each rank."""
        return self.by_rank and bool(self._rows["same_bits"].all())

    def verdict(self) -> str:
        """Return the first tensor in which the runs differ, or that they do not differ."""
        tensors, row = format_count(self._rows.height, "tensor"), self.first
        if self.same_bits:
            return f"The same bits: all summaries of {tensors} agree on each rank."
        if row is None:
            return f"The same but for rounding: norms and means of {tensors} agree, as whole tensors."
        what = f"its {row['name']}"
        if row["phase"] in ("backward", "gradient"):
            what = f"the gradient of {what if row['phase'] == 'backward' else row['name']}"
        place = f"in {row['phase']} of step {row['step']}, {row['module'] or 'the model'}, in {what}"
        ranks = f" on {format_ranks(row['ranks'])}" if self.by_rank else ""  # type: ignore[arg-type]
        if row["same"]:
            return f"The same but for rounding: bits differ first {place}{ranks}; no norm or mean of {tensors} does."
        return f"The values first differ {place}{ranks}: {_looks(row)}."

    def lines(self) -> list[str]:
        """Return the verdict, and the first value of each run that is not finite."""
        sides = [first_non_finite(side) for side in (self._before, self._after)]
        notes = [f"{name}: {note}" for name, note in zip("AB", sides, strict=True) if note is not None]
        return [self.verdict(), *notes]


def numeric_difference(before: Tables, after: Tables) -> NumericDifference:
    """Compare the values of two runs.

    Raises:
        UsageError: one of them has no summaries.
    """
    for name, tables in (("A, before", before), ("B, after", after)):
        if tables.numerics.is_empty():
            raise UsageError(f"trace {name}, has no summaries of values: record it with commtrace(numerics=True)")
    return NumericDifference(before.numerics, after.numerics)


def _named(numerics: pl.DataFrame) -> pl.DataFrame:
    """Return summaries in program order with modules named from the root on, whatever the root's class and wrapper."""
    path = pl.col("module").str.replace(r"^(DistributedDataParallel\.module|[^.]*)(\.|$)", "")
    order = pl.col("phase").replace_strict({phase: at for at, phase in enumerate(_PHASES)}, default=9)
    return numerics.sort("step", "seq", order, "rank").with_columns(module=path)


def _joined(before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    return before.join(after, on=keys, how="inner", suffix="_after", maintain_order="left")


def _aggregate_ranks(judged: pl.DataFrame) -> pl.DataFrame:
    """Return one row per tensor, with the ranks on which it differs."""
    differs = pl.when((~pl.col("same")).any()).then(~pl.col("same")).otherwise(~pl.col("same_bits"))
    return judged.group_by(KEYS, maintain_order=True).agg(
        pl.col("rank").filter(differs).sort().alias("ranks"),
        pl.col("same_bits", "same").all(),
        pl.col("reordered").any(),
        pl.col("norm", "norm_after").get(pl.col("difference").arg_max()),
        pl.col("difference").max(),
    )


def _whole(named: pl.DataFrame) -> pl.DataFrame:
    """Return summaries of whole tensors: sums over ranks, and over a module's calls, which may be microbatches."""
    return named.group_by(KEYS[:-1], maintain_order=True).agg(
        pl.lit(0, pl.Int32).alias("call"),
        pl.col("rank").unique().sort().alias("ranks"),
        pl.col("dtype").first(),
        pl.col("count").sum(),
        (pl.col("norm") ** 2).sum().sqrt().alias("norm"),
        ((pl.col("mean") * pl.col("count")).sum() / pl.col("count").sum()).alias("mean"),
        pl.lit(None, pl.Int64).alias("hash"),
        pl.lit(None, pl.Float64).alias("projection"),
    )


def _norms_per_copy(both: pl.DataFrame) -> pl.DataFrame:
    """Return norms and counts of one copy of each tensor; tensors whose sizes are no multiples are omitted."""
    least = pl.min_horizontal("count", "count_after")
    fits = (pl.col("count") % least == 0) & (pl.col("count_after") % least == 0)
    return both.filter(fits).with_columns(
        norm=pl.col("norm") / (pl.col("count") / least).sqrt(),
        norm_after=pl.col("norm_after") / (pl.col("count_after") / least).sqrt(),
        count=least,
        count_after=least,
    )


def _judged(both: pl.DataFrame) -> pl.DataFrame:
    """Add whether the bits, and norm and mean up to rounding, are the same."""
    eps = pl.max_horizontal(pl.col(name).replace_strict(_EPS, default=1.0) for name in ("dtype", "dtype_after"))
    norm = pl.max_horizontal("norm", "norm_after")
    of_norm = (pl.col("norm") - pl.col("norm_after")).abs() / norm
    of_mean = (pl.col("mean") - pl.col("mean_after")).abs() / (norm / pl.col("count").sqrt())
    both_odd = pl.col("norm").is_finite().not_() & pl.col("norm_after").is_finite().not_()
    difference = pl.when(both_odd | (norm == 0)).then(0.0).otherwise(pl.max_horizontal(of_norm, of_mean))
    root = pl.col("count").sqrt()
    largest = (norm / root).filter(norm.is_finite()).max().over("step", "phase")
    apart = pl.max_horizontal(
        (pl.col("norm") - pl.col("norm_after")).abs() / root, (pl.col("mean") - pl.col("mean_after")).abs()
    )
    is_left = (apart <= pl.min_horizontal(eps * _OF_LARGEST, pl.lit(_MOST_OF_LARGEST)) * largest).fill_null(
        value=False
    ) & apart.is_finite()
    same_hash = (pl.col("hash") == pl.col("hash_after")).fill_null(value=False)
    same_order = pl.col("projection").eq_missing(pl.col("projection_after")) & pl.col("hash").is_not_null()
    return (
        both.with_columns(difference=difference.fill_nan(float("inf")))
        .with_columns(
            same_bits=same_hash & same_order,
            same=(pl.col("difference") <= pl.min_horizontal(eps * _ROUNDINGS, pl.lit(_MOST))) | is_left,
            reordered=same_hash & ~same_order,
        )
        .with_columns(same=pl.col("same") & ~pl.col("reordered"))
    )


def _looks(row: dict[str, object]) -> str:
    """Describe how a tensor differs: in order, or by its norms and a whole factor between them."""
    if row["reordered"]:
        return "the same values in another order"
    before, after = float(str(row["norm_before"])), float(str(row["norm_after"]))
    ratio = after / before if before else float("inf")
    times = round(max(ratio, 1 / ratio)) if 0 < ratio < float("inf") else 0
    factor = ""
    if times > 1 and abs(max(ratio, 1 / ratio) - times) < 1e-4 * times:
        factor = f", {times} times as much" if ratio > 1 else f", 1/{times} of it"
    return f"norm {before:.4g} in A, {after:.4g} in B{factor}"
