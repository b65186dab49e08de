"""`Finding` is something that a program sends needlessly, or wrong values; `Findings` are those of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.display import Result
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes

COLUMNS: dict[str, pl.DataType] = {
    "rule": pl.String(),  # name of the rule, which is that of its function
    "module": pl.String(),  # one module, or numbered siblings together: "Llama.layers.*.mlp"
    "source": pl.String(),  # "file:line", or "file:line, line" for several lines
    "op": pl.String(),
    "axis": pl.String(),
    "per": pl.String(),  # the divisor of count and bytes: "rank and step", or "rank" for start-up
    "count": pl.Float64(),  # number of collectives
    "message_bytes": pl.Int64(),
    "wire_bytes": pl.Int64(),
    "spare_bytes": pl.Int64(),  # wire bytes that the change would save
    "spare_seconds": pl.Float64(),  # seconds of waiting that the change would save, over all ranks and steps
    "why": pl.String(),
    "change": pl.String(),  # what to try
}
"""Columns of `Findings.to_frame`."""

NO_FINDING = "No rule found anything: see dsexplore._internal.analysis.findings for what they look for."

BYTES_PER_SECOND = 13e9
"""The rate at which wire bytes and seconds are compared."""
COST_OF_A_CALL = 128 * 1024
"""Wire bytes that take about as long as one more collective does, whatever its size: 10 µs at 13 GB/s."""


@dataclass(frozen=True)
class Finding:
    """Something that a program sends needlessly, or wrong values.

    Counts and bytes are means over the ranks that send it.
    """

    rule: str
    """Name of the rule, such as ``"small_fsdp"``."""
    module: str
    """One module, or numbered siblings together: ``"Llama.layers.*.mlp"``."""
    axis: str
    why: str
    """What is sent needlessly, in words."""
    change: str
    """What to try."""
    source: str = ""
    """``"model.py:3"``, or ``"model.py:3, 7"`` for several lines."""
    op: str = ""
    per: str = "rank and step"
    """The divisor of count and bytes: ``"rank and step"``, or ``"rank"`` for start-up."""
    count: float = 0.0
    """Number of collectives."""
    message_bytes: int = 0
    wire_bytes: int = 0
    spare_bytes: int = 0
    """Wire bytes that the change would save."""
    spare_calls: float = 0.0
    """Number of collectives that the change would save."""
    spare_seconds: float = 0.0
    """Seconds of waiting that the change would save, over all ranks and steps."""
    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False)
    """The events that the finding is about, as positions in `Trace.events`."""
    is_wrong: bool = False
    """True if values are wrong; such a finding has no traffic to save, and no events."""

    @property
    def weight(self) -> float:
        """Saving of the change in wire bytes; a collective counts `COST_OF_A_CALL`, and seconds count as bytes.

        Wrong values weigh more than any saving.
        """
        if self.is_wrong:
            return math.inf
        return self.spare_bytes + COST_OF_A_CALL * self.spare_calls + BYTES_PER_SECOND * self.spare_seconds


class Findings(Result, Sequence[Finding]):
    """The findings of a trace, largest saving first. Displayed as a table."""

    _INTERNAL = frozenset({"tables"})

    def __init__(self, tables: Tables, findings: Sequence[Finding]) -> None:
        self.tables = tables
        self._sorted = sorted(
            findings, key=lambda finding: (-finding.weight, finding.rule, finding.module, finding.source, finding.axis)
        )

    def __len__(self) -> int:
        """Return the number of findings."""
        return len(self._sorted)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # the two forms of Sequence
        return self._sorted[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._sorted)

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in self))
        return f"<Findings: {len(self)}{f' of {rules}' if rules else ''}>"

    def verdict(self) -> str:
        """Return the finding with the largest saving, how much its change would save, and where."""
        if not self._sorted:
            return NO_FINDING
        first = self._sorted[0]
        saves = f", {format_bytes(first.spare_bytes)} per {first.per}" if first.spare_bytes else ""
        where = f", in {first.module}" if first.module else ""
        return f"Largest: {first.why.partition(':')[0]}{saves}{where}."

    def lines(self) -> list[str]:
        """Return the verdict; then for each finding what is sent needlessly, where, and the change to try."""
        places = [", ".join(filter(None, (finding.module, finding.source))) for finding in self]
        placed = zip(self, places, strict=True)
        return [self.verdict(), *(f"{finding.why}; {place}; try: {finding.change}" for finding, place in placed)]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per finding; columns: `COLUMNS`."""
        rows = [{name: getattr(finding, name) for name in COLUMNS} for finding in self]
        return pl.DataFrame(rows, schema=COLUMNS)

    def trace(self, index: int) -> Trace:
        """Return the events of one finding as a `Trace`."""
        return Trace(replace(self.tables, events=self.tables.events[self._sorted[index].rows.tolist()]))
