"""`CommSweep`: the measurements of a sweep of collectives, as rows that nccl-tests would print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsexplore._internal.comm.sweeps.bandwidth import bandwidth
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.saved_json import SavedFormat, SavedJson, value_of
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.units import format_bytes, format_share

if TYPE_CHECKING:
    import polars

_QUIET = 4
"""A quiet time is the mean over the fastest ``1 / _QUIET`` of the rounds."""
_LEVEL = 0.9
"""Fraction of an op's best bandwidth from which its bandwidth counts as saturated."""
_DISTURBED = 1.5
"""Ratio of the mean time to the quiet time above which a sweep says that other programs ran."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Measurement of one op at one size, in place or out of place.

    Attributes:
        op: a name from `trace.collectives.OPS`.
        message_bytes: message bytes, S in nccl-tests.
        in_place: True if the result overwrites the input's buffer.
        rounds: seconds of one call in each round: the mean over the calls and the ranks.
        calls: number of timed calls in all rounds.
        wrong: number of checked elements that were wrong; None if nothing was checked.
        quartiles: seconds of one call in each round: the lower quartile of the calls, as a mean over the ranks. Empty
            if single calls were not timed: on GPUs, where calls are queued, and in nccl-tests.
    """

    op: str
    message_bytes: int
    in_place: bool
    rounds: tuple[float, ...]
    calls: int
    wrong: int | None
    quartiles: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of one call: the mean over all calls and ranks, as nccl-tests prints it."""
        return fmean(self.rounds)

    @property
    def quiet_seconds(self) -> float:
        """Seconds of one call on a quiet machine: the mean over the fastest quarter of the rounds, at least one.

        The time of a round is the lower quartile of its calls, or their mean if calls were not timed one by one. Slow
        rounds are ignored, since other programs only add time. The fastest round alone may be luck: among 24 rounds of
        two local ranks, the best even and the best odd round differed by 22 % at the 90th percentile of the points, the
        means of the fastest quarters by 14 %.
        """
        times = self.quartiles or self.rounds
        return fmean(sorted(times)[: max(1, len(times) // _QUIET)])


@dataclass(frozen=True, slots=True)
class SweepConditions:
    """The conditions of a sweep: what was measured, and on which machines.

    Attributes:
        backend: backend of the group: ``"nccl"``, ``"gloo"``, …
        device: device type of the tensors: ``"cpu"`` or ``"cuda"``.
        nodes: number of machines that the ranks ran on.
        ranks_per_node: number of ranks on each machine; the largest number if they differ.
        dtype: data type of the elements.
        software: versions of torch and of the library, or the library and the name of the file that was read.
        started: time at which the sweep began, in ISO 8601; empty if unknown.
        remarks: sentences on what was omitted, and why.
        processors: number of processors that the processes of one machine may use; None if unknown.
    """

    backend: str
    device: str
    nodes: int
    ranks_per_node: int
    dtype: str
    software: str
    started: str
    remarks: tuple[str, ...] = ()
    processors: int | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return self.nodes * self.ranks_per_node


@dataclass
class CommSweep(SavedJson, Result):
    """All measurements of a sweep; displays itself in a notebook."""

    _INTERNAL = frozenset({"FORMAT", "points_of", "what"})

    FORMAT: ClassVar[SavedFormat] = SavedFormat(
        "dsexplore communication sweep", version=1, kind="sweep of collectives", writer="CommSweep.save"
    )

    conditions: SweepConditions
    """What was measured, and on which machines."""
    points: list[SweepPoint] = field(default_factory=list)
    """Measurements, in the order of measurement."""

    @property
    def ops(self) -> list[str]:
        """Ops that were measured, in the order of measurement."""
        return list(dict.fromkeys(point.op for point in self.points))

    def points_of(self, op: str, *, in_place: bool | None = None) -> list[SweepPoint]:
        """Return the points of one op by ascending size.

        Args:
            op: one of `ops`.
            in_place: True for in-place points, False for out-of-place points; None for one point per size, out of
                place if that was measured.

        Raises:
            UsageError: the op was not measured.
        """
        if op not in self.ops:
            raise UsageError(f"op {op!r} was not measured: there is {', '.join(self.ops)}")
        points = [point for point in self.points if point.op == op]
        if in_place is not None:
            points = [point for point in points if point.in_place == in_place]
        first: dict[int, SweepPoint] = {}
        for point in sorted(points, key=lambda p: (p.message_bytes, p.in_place)):
            first.setdefault(point.message_bytes, point)
        return list(first.values())

    def wrong(self) -> list[SweepPoint]:
        """Return the points with wrong results."""
        return [point for point in self.points if point.wrong]

    def to_frame(self) -> polars.DataFrame:
        """Return one row per point: seconds, and algbw and busbw in GB/s as nccl-tests defines them."""
        import polars

        return polars.DataFrame([self._row(point) for point in self.points], infer_schema_length=None)

    def _row(self, point: SweepPoint) -> dict[str, Any]:
        """Return the row of `to_frame` for a point."""
        algbw, busbw = bandwidth(point.op, point.message_bytes, point.seconds, self.conditions.ranks)
        return {
            "op": point.op,
            "message_bytes": point.message_bytes,
            "in_place": point.in_place,
            "seconds": point.seconds,
            "quiet_seconds": point.quiet_seconds,
            "algbw": algbw,
            "busbw": busbw,
            "shortest": min(point.rounds),
            "longest": max(point.rounds),
            "rounds": len(point.rounds),
            "calls": point.calls,
            "wrong": point.wrong,
        }

    def to_nccl_tests(self, op: str) -> str:
        """Return the points of one op as nccl-tests prints them; times in microseconds, bandwidths in GB/s.

        After a ``#``, each row has the spread of its first time: the quiet time, and the mean of the slowest round.
        """
        return "\n".join(table_lines(self, op))

    def to_json(self) -> dict[str, object]:
        """Return the result as plain JSON values; `from_json` reads them back."""
        return {
            **self.FORMAT.header(),
            "conditions": asdict(self.conditions),
            "points": [asdict(point) for point in self.points],
        }

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        conditions = value_of(SweepConditions, loaded["conditions"], "conditions")
        points = value_of(list[SweepPoint], loaded["points"], "points")
        for at, point in enumerate(points):
            if point.op not in OPS:
                raise UsageError(
                    f"{name} has points[{at}].op = {point.op!r}, which is not a collective: known are {', '.join(OPS)}"
                )
            if not point.rounds or not all((*point.rounds, *point.quartiles)):
                raise ValueError(f"points[{at}] has no time in its rounds or quartiles, or one of 0 s")
        return cls(conditions, points)

    def what(self) -> str:
        """Return where it was measured, in one line."""
        conditions = self.conditions
        ranks = f"{conditions.ranks} ranks"
        if conditions.nodes > 1:
            ranks = f"{conditions.nodes} × {conditions.ranks_per_node} ranks"
        return f"{conditions.backend} on {conditions.device}, {ranks}, {conditions.dtype}; {conditions.software}"

    def verdict(self) -> str:
        """Return where the bus bandwidth of the first op saturates, and the fastest and slowest ops."""
        rates = {op: [(point.message_bytes, self._busbw(point)) for point in self.points_of(op)] for op in self.ops}
        best = {op: max(rate for _, rate in points) for op, points in rates.items()}
        if not best:
            return "Nothing was measured."
        first, top = next(iter(best.items()))
        low = max((size for size, rate in rates[first] if rate < _LEVEL * top), default=0)
        level = [size for size, _ in rates[first] if size > low]
        reached = f"{first} reaches {top:.3g} GB/s of bus bandwidth"
        if len(level) > 1:
            reached += f", and keeps {format_share(_LEVEL, 1)} of it from {format_bytes(min(level))} on"
        else:
            reached += f", which is not level yet at {format_bytes(max(size for size, _ in rates[first]))}"
        ranked = sorted(best, key=lambda op: -best[op])
        if len(ranked) == 1:
            return f"{reached}."
        fastest, slowest = (f"{op} ({best[op]:.3g} GB/s)" for op in (ranked[0], ranked[-1]))
        return f"{reached}; fastest is {fastest}, slowest {slowest}."

    def _busbw(self, point: SweepPoint) -> float:
        return bandwidth(point.op, point.message_bytes, point.seconds, self.conditions.ranks)[1]

    def lines(self) -> list[str]:
        """Return the verdict, the best bandwidth of each op, wrong results, and remarks."""
        lines = [self.verdict()]
        for op in self.ops:
            rows = [self._row(point) for point in self.points_of(op)]
            best = max(rows, key=lambda row: float(row["busbw"]))
            least = min(float(row["seconds"]) for row in rows)
            lines.append(
                f"{op}: mean {least * 1e6:.1f} µs at least, {best['busbw']:.3g} GB/s bus bandwidth "
                f"at {format_bytes(best['message_bytes'])}"
            )
        disturbed = max((point.seconds / point.quiet_seconds for point in self.points), default=1.0)
        if disturbed > _DISTURBED:
            lines.append(
                f"Means are up to {disturbed:.1f} times the quiet times, so other programs ran meanwhile: calibrate "
                "takes the quiet times, to which others only add."
            )
        if self.wrong():
            wrong = ", ".join(f"{point.op} of {format_bytes(point.message_bytes)}" for point in self.wrong())
            lines.append(f"WRONG RESULTS: {wrong}")
        return [*lines, *self.conditions.remarks]

    def __str__(self) -> str:
        return "\n".join([self.what(), *self.lines()])


_TOP = "#                                                              out-of-place                       in-place"
_NAMES = ("#       size         count      type   redop    root", "     time   algbw   busbw  #wrong")
_UNITS = ("#        (B)    (elements)                          ", "     (us)  (GB/s)  (GB/s)        ")
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


def table_lines(sweep: CommSweep, op: str) -> Iterator[str]:
    """Yield the header and the rows of `CommSweep.to_nccl_tests`.

    Raises:
        UsageError: the op was not measured.
    """
    yield _TOP
    yield f"{_NAMES[0]}{_NAMES[1]}{_NAMES[1]}  # quiet to slowest round"
    yield f"{_UNITS[0]}{_UNITS[1]}{_UNITS[1]}  # (us)"
    out_of_place = {point.message_bytes: point for point in sweep.points_of(op, in_place=False)}
    in_place = {point.message_bytes: point for point in sweep.points_of(op, in_place=True)}
    for size in sorted(out_of_place.keys() | in_place.keys()):
        yield _row_line(sweep, op, size, [out_of_place.get(size), in_place.get(size)])


def _row_line(sweep: CommSweep, op: str, size: int, points: Sequence[SweepPoint | None]) -> str:
    """Return a row for the points of one size: out of place and in place, None for what was not measured."""
    name = _NCCL_NAMES.get(sweep.conditions.dtype, sweep.conditions.dtype)
    parts = sweep.conditions.ranks if op in _PER_RANK else 1
    count = size // _BYTES[name] // parts if name in _BYTES else "N/A"
    redop, root = ("sum" if op in _REDUCING else "none"), (0 if op in _ROOTED else -1)
    cells = [f"{size:12} {count:>13} {name:>9} {redop:>7} {root:7}"]
    for point in points:
        if point is None:
            cells.append(f"{'N/A':>9} {'N/A':>7} {'N/A':>7} {'N/A':>7}")
            continue
        algbw, busbw = bandwidth(op, size, point.seconds, sweep.conditions.ranks)
        wrong = "N/A" if point.wrong is None else str(point.wrong)
        cells.append(f"{_significant(point.seconds * 1e6):>9} {algbw:7.2f} {busbw:7.2f} {wrong:>7}")
    spread = next((f"  # {_spread(point)}" for point in points if point is not None), "")
    return f"{''.join(cells)}{spread}"


def _spread(point: SweepPoint) -> str:
    """Return the quiet time and that of the slowest round, in microseconds."""
    return f"{_significant(point.quiet_seconds * 1e6)} to {_significant(max(point.rounds) * 1e6)}"


_NCCL_NAMES = {
    "float32": "float", "float16": "half", "float64": "double", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""{torch's name of a dtype: nccl-tests' name, if different}."""
_BYTES = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
"""{type name in nccl-tests: bytes of one element}."""


def _significant(microseconds: float) -> str:
    """Return a time with four or more digits, as nccl-tests prints it."""
    return f"{microseconds:.2f}" if microseconds < 1e4 else f"{microseconds:.0f}"
