"""`SweepResult`: the measurements of a sweep, with the recommended setting, tables, sentences and a file."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsexplore._internal.aio.sweeps import result_text
from dsexplore._internal.aio.sweeps.choice import Best, recommend
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import fio_job
from dsexplore._internal.aio.sweeps.measurements import Measurements, mixed_rate
from dsexplore._internal.aio.sweeps.result_rows import setting_rows, shared_rows, slice_rows
from dsexplore._internal.aio.sweeps.statistics import Interval, ratio_interval
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.saved_json import SavedFormat, SavedJson, value_of
from dsexplore._internal.units import format_count

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class SweepResult(Measurements, SavedJson, Result):
    """All measurements of a sweep; displays itself in a notebook."""

    _INTERNAL = frozenset({"FORMAT", "compare_rows", "deciding", "unlike"})

    FORMAT: ClassVar[SavedFormat] = SavedFormat("dsexplore sweep", version=1, kind="sweep", writer="SweepResult.save")

    def __repr__(self) -> str:
        what = " and ".join(self.operations) or "nothing"
        return f"<SweepResult: {format_count(len(self.measured), 'slice')} of {what} on {self.disk.label}>"

    def best(self) -> Best:
        """Return the cheapest setting tied with the fastest, or the default unless that setting is surely better.

        Raises:
            UsageError: the sweep was interrupted before any setting was measured beside the control.
        """
        return recommend(self)

    def rate_interval(self) -> Interval:
        """Return the mean bytes per second of the recommended setting for the user's mix, with a 95 % interval.

        The interval is 0 to infinity after a single round.
        """
        config = self.best().config
        slices = defaultdict(list)
        for m in self.deciding:
            # without finals, the slices of an unfinished round are among those that decide
            if m.sample.config == config and m.round in self.rounds[config]:
                slices[m.round].append(m)
        return ratio_interval([mixed_rate(rates, self.conditions.read_share) for rates in slices.values()])

    def to_ds_config(self) -> dict[str, dict[str, int | bool]]:
        """Return the ``"aio"`` block of the best setting, to put into a ds_config."""
        return self.best().config.to_ds_config()

    def to_fio_job(self) -> str:
        """Return the best setting as a job file of fio, with one job of 10 s for each measured direction."""
        config, disk = self.best().config, self.disk
        return fio_job(disk.path, self.conditions.size, config, self.operations, direct=disk.direct, seconds=10.0)

    def to_frame(self, *, slices: bool = False) -> polars.DataFrame:
        """Return one row per setting and operation, or with ``slices=True`` one row per measured slice.

        Rates are in GB/s (10⁹ bytes) and GiB/s (2³⁰ bytes), latencies in milliseconds. ``ratio``, with its 95 %
        interval, is relative to the default setting in the same rounds.
        """
        import polars

        rows = slice_rows(self.measured) if slices else setting_rows(self.measured, self.control)
        return polars.DataFrame(rows, infer_schema_length=None)

    def compare(self, other: SweepResult) -> polars.DataFrame:
        """Return a row per setting that both results measured; ``ratio`` is this result's median rate over the other's.

        Only tensor sizes that both have moved are compared; all sizes if they share none.

        Raises:
            TypeError: ``other`` is not a SweepResult.
            UsageError: they share no setting.
        """
        import polars

        return polars.DataFrame(self.compare_rows(other))

    def compare_rows(self, other: SweepResult) -> list[dict[str, object]]:
        """Return the rows of `compare` as dicts; raise as `compare` does."""
        if not isinstance(other, SweepResult):
            raise TypeError(
                f"compare() takes a SweepResult, not {type(other).__name__}: load one with SweepResult.load"
            )
        rows = shared_rows(self.measured, other.measured)
        if not rows:
            raise UsageError("the two sweeps measured no setting in common: sweep with the same axes")
        return sorted(rows, key=lambda row: (row["operation"], row["ratio"]))

    def unlike(self, other: SweepResult) -> list[str]:
        """Return sentences on how the conditions of two sweeps differ, which alone may make their rates differ."""
        return list(result_text.differences(self, other))

    def to_json(self) -> dict[str, object]:
        """Return the result as plain JSON values; `from_json` reads them back."""
        return {
            **self.FORMAT.header(),
            "disk": asdict(self.disk),
            "conditions": asdict(self.conditions),
            "control": asdict(self.control),
            "measured": [asdict(m) for m in self.measured],
            "references": [asdict(r) for r in self.references],
            "bytes_written": self.bytes_written,
            "elapsed": self.elapsed,
            "interrupted": self.interrupted,
            "unfinished_round": self.unfinished_round,
            "spent": self.spent,
        }

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        ignored = {*cls.FORMAT.header(), "aio", "tied"}  # ``dsexplore aio --json`` adds the last two
        fields = {key: field for key, field in loaded.items() if key not in ignored}
        result = value_of(cls, fields, "the result")
        for at, slice_ in enumerate(result.measured):
            if not (slice_.sample.bytes and slice_.sample.seconds):
                raise ValueError(f"measured[{at}] has moved 0 bytes, or in 0 s")
        for at, reference in enumerate(result.references):
            if not reference.rates:
                raise ValueError(f"references[{at}].rates has no rate")
        return result

    def __str__(self) -> str:
        return "\n".join([result_text.what(self), *self.lines(), *result_text.other_lines(self)])

    def verdict(self) -> str:
        """Return which setting to use, and its gain over the default."""
        return self.best().verdict() if self.rounds else "No setting was compared with the default yet."

    def lines(self) -> list[str]:
        """Return the verdict, why the sweep ended early, and the rates of the recommended setting, as sentences."""
        return [self.verdict(), *result_text.remarks(self), *result_text.rate_lines(self)]
