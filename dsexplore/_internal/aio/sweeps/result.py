"""The result of a sweep: every slice that was measured, the disk and conditions, and the recommended setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.choice import Best, Cost, choose, paired
from dsexplore._internal.aio.sweeps.measure import Sample
from dsexplore._internal.aio.sweeps.reference_rates import Reference, advice_lines, memory_lines, slower_elsewhere
from dsexplore._internal.aio.sweeps.references import fio_job
from dsexplore._internal.aio.sweeps.result_rows import setting_rows, shared_rows, shared_sizes, slice_rows
from dsexplore._internal.aio.sweeps.rounds import (
    Rounds,
    RoundSlice,
    by_transfer,
    lowest_ratios,
    mixed_rate,
    mixed_ratios,
)
from dsexplore._internal.aio.sweeps.statistics import Interval, median, ratio_interval
from dsexplore._internal.display import Displayable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.saved_json import SavedFormat, SavedJson, value_of
from dsexplore._internal.units import format_bytes, format_count, format_rate, format_rate_range, format_share

if TYPE_CHECKING:
    import polars

_MOST_OTHERS = 8
"""Number of other settings that are written out as text."""
_FASTER_THAN_DRIVES = 7.5e9
"""Bytes per second that no drive on four lanes of PCIe 4.0 exceeds (7.9 GB/s before overhead)."""
_WHOLE = 0.95
"""Fraction of a file that must hold data for its rates to be the disk's."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a sweep."""

    backend: str
    unavailable: dict[str, str]
    """{engine: why it could not run}."""
    mode: str
    write_mode: str
    """``overwrite``, ``fresh`` or ``fallocated``; ``none`` for a file that is only read."""
    size: int
    read_share: float
    """Fraction of the user's traffic that is reads, 0 to 1."""
    seconds: float | None
    slice_seconds: float
    huge_share: float | None
    cached_share: float | None
    """Fraction of the file that was still in the page cache when reading began."""
    system: str
    started: str
    transfers: tuple[int, ...] = ()
    """Bytes of each tensor size that was moved; empty for older sweeps."""
    data_share: float = 1.0
    """Fraction of the file that is read from the disk; the rest is holes or compressed away."""
    processes: int = 1
    """Number of processes that moved tensors at the same time."""
    further_folders: tuple[str, ...] = ()
    """Directories on other disks that were measured together with that of `SweepResult.disk`."""
    most_written: int | None = None
    """Limit of bytes to write; None for no limit."""
    memory: str = "huge"
    """Pages of the tensors: ``ordinary`` or ``huge``; older sweeps had only huge ones."""
    left_out: str = ""
    """A sentence on what a slow disk left no time for; empty if nothing."""
    loop: str = "Python"
    """What kept the queues full: ``C``, or ``Python`` with the reason; Python takes more time per request than a fast
    disk. Older sweeps had only Python."""


@dataclass
class SweepResult(SavedJson, Displayable):
    """All measurements of a sweep; displays itself in a notebook."""

    FORMAT: ClassVar[SavedFormat] = SavedFormat("dsexplore sweep", 1, "sweep", "SweepResult.save")

    disk: Disk
    conditions: Conditions
    measured: list[RoundSlice]
    references: list[Reference] = field(default_factory=list)
    control: AioConfig = field(default_factory=AioConfig)
    bytes_written: int = 0
    """Bytes that the sweep wrote to the disk, which count against the drive's endurance."""
    elapsed: float = 0.0
    interrupted: bool = False
    spent: bool = False
    """True if the sweep ended because it reached its limit of bytes to write."""

    def __repr__(self) -> str:
        what = " and ".join(self.operations) or "nothing"
        return f"<SweepResult: {format_count(len(self.measured), 'slice')} of {what} on {self.disk.label}>"

    @property
    def operations(self) -> list[str]:
        """``read``, ``write`` or both, as measured."""
        return [op for op in ("read", "write") if any(m.sample.operation == op for m in self.measured)]

    @property
    def deciding(self) -> list[RoundSlice]:
        """Slices that decide: those of the finals, or all if no round of the finals was finished."""
        return self._finals or self.measured

    @property
    def _finals(self) -> list[RoundSlice]:
        finals = [m for m in self.measured if m.phase == "finals"]
        finished = len({m.round for m in finals}) - self.interrupted
        return finals if finished > 0 else []

    @cached_property
    def rounds(self) -> Rounds:
        """Mixed rate of each setting as a ratio to the control's, in each deciding round."""
        return mixed_ratios(self.deciding, self.control, self.conditions.read_share)

    def best(self) -> Best:
        """Return the cheapest setting tied with the fastest, or the default unless that is surely worth it.

        Raises:
            UsageError: the sweep was interrupted before any setting was measured beside the control.
        """
        rounds = self._contenders()
        if not rounds:
            raise UsageError("the sweep ended before any setting was compared with the default: run it for longer")
        worst = lowest_ratios(self.deciding, self.control, self.conditions.read_share)
        config, tied, unsure = choose(rounds, self.control, {config: self._cost(config) for config in rounds}, worst)
        slower = slower_elsewhere(self.references, self.operations, config, self.control)
        doubts = (*self._doubts(), *(doubt for doubt in (unsure, slower) if doubt))
        if doubts:
            config = self.control
        means = {config: ratio_interval(list(ratios.values())) for config, ratios in rounds.items()}
        fastest = max(means, key=lambda config: means[config].value)
        default = paired(rounds[self.control], rounds[fastest])
        assert default is not None  # every round has the control
        return Best(
            config=config,
            ratio=means[config],
            rate=self.mixed_rate(config),
            fastest=fastest,
            fastest_ratio=means[fastest],
            tied=tied,
            default_ratio=default,
            doubts=doubts,
        )

    def _cost(self, config: AioConfig) -> Cost:
        samples = [m.sample for m in self.deciding if m.sample.config == config]
        return Cost(median([s.p99 for s in samples]), median([s.cpu_ms_per_gib for s in samples]))

    def _doubts(self) -> Iterator[str]:
        """Yield reasons why what was measured may not be the disk."""
        disk, data_share = self.disk, self.conditions.data_share
        if disk.kind == "memory":
            yield "these files live in memory, so no disk was measured"
        elif not disk.direct:
            yield f"the page cache was measured, not the disk, since {disk.why_buffered}"
        if disk.kind == "loop":
            yield f"{disk.device} is a loop device, whose data may come from the page cache: sweep where its file lies"
        if data_share < _WHOLE:
            yield (
                f"{format_share(1 - data_share, 1)} of the file are holes or compressed, for which no disk is asked: "
                "sweep a file full of data, or a directory"
            )

    def _contenders(self) -> Rounds:
        """Return the settings that stayed to the end of the finals, each with the same rounds.

        Settings dropped earlier were measured under other conditions, and an interrupted round is missing some
        settings.
        """
        if not self._finals:
            return self.rounds
        numbers = sorted({number for ratios in self.rounds.values() for number in ratios})
        if self.interrupted and len(numbers) > 1:
            numbers.pop()
        return {
            config: {number: ratios[number] for number in numbers if number in ratios}
            for config, ratios in self.rounds.items()
            if numbers[-1] in ratios
        }

    def mixed_rate(self, config: AioConfig) -> float:
        """Return the median bytes per second of one setting for the user's mix of reads and writes."""
        return mixed_rate([m for m in self.deciding if m.sample.config == config], self.conditions.read_share)

    def rate_interval(self) -> Interval:
        """Return the recommended setting's bytes per second for the user's mix: the mean of the rounds, with interval.

        The 95 % interval is 0 to infinity after one round.
        """
        config, slices = self.best().config, defaultdict(list)
        for m in self.deciding:
            # Of a round that was cut short, a part is among those that decide.
            if m.sample.config == config and m.round in self.rounds[config]:
                slices[m.round].append(m)
        return ratio_interval([mixed_rate(rates, self.conditions.read_share) for rates in slices.values()])

    def to_ds_config(self) -> dict[str, dict[str, int | bool]]:
        """Return the ``"aio"`` block of the best setting, to put into a ds_config."""
        return self.best().config.to_ds_config()

    def to_fio_job(self) -> str:
        """Return the best setting as a job file of fio, with one job of 10 s for each measured direction."""
        how, disk = self.conditions, self.disk
        return fio_job(disk.path, how.size, self.best().config, self.operations, direct=disk.direct, seconds=10.0)

    def to_frame(self, *, slices: bool = False) -> polars.DataFrame:
        """Return one row per setting and operation, or with ``slices=True`` one per measured slice.

        Rates are in GB/s (10⁹ bytes) and GiB/s (2³⁰ bytes), latencies in milliseconds, ``ratio`` relative to the
        default setting in the same rounds with its 95 % interval.
        """
        import polars

        rows = slice_rows(self.measured) if slices else setting_rows(self.measured, self.control)
        return polars.DataFrame(rows, infer_schema_length=None)

    def compare(self, other: SweepResult) -> polars.DataFrame:
        """Return the settings that both results measured; ``ratio`` is this one's median rate over the other's.

        Only tensor sizes that both moved are compared, or all if they share none: see `unlike`.

        Raises:
            TypeError: ``other`` is no SweepResult.
            UsageError: they share no setting.
        """
        import polars

        return polars.DataFrame(self.compare_rows(other))

    def compare_rows(self, other: SweepResult) -> list[dict[str, object]]:
        """Return the rows of `compare` as dicts; raises as `compare`."""
        if not isinstance(other, SweepResult):
            raise TypeError(
                f"compare() takes a SweepResult, not {type(other).__name__}: load one with SweepResult.load"
            )
        rows = shared_rows(self.measured, other.measured)
        if not rows:
            raise UsageError("the two sweeps measured no setting in common: sweep with the same axes")
        return sorted(rows, key=lambda row: (row["operation"], row["ratio"]))

    def unlike(self, other: SweepResult) -> list[str]:
        """Return sentences on differences in how two sweeps measured, which alone may make their rates differ."""
        mine, theirs, lines = self.conditions, other.conditions, []
        if set(mine.transfers) != set(theirs.transfers):
            shared = sorted(shared_sizes(self.measured, other.measured))
            at = f"the rates below are those of {_sizes(shared)}" if shared else "the rates below are those of all"
            lines.append(f"Tensors are of {_sizes(mine.transfers)} and of {_sizes(theirs.transfers)}: {at}.")
        if mine.processes != theirs.processes:
            lines.append(f"Processes at once are {mine.processes} and {theirs.processes}: rates are of all together.")
        if mine.further_folders != theirs.further_folders:
            counts = [1 + len(conditions.further_folders) for conditions in (mine, theirs)]
            lines.append(f"{counts[0]} and {counts[1]} directories were measured at once.")
        if mine.size != theirs.size:
            lines.append(f"Files hold {format_bytes(mine.size)} and {format_bytes(theirs.size)}.")
        if mine.write_mode != theirs.write_mode:
            lines.append(f"Writes are {mine.write_mode} and {theirs.write_mode}.")
        return lines

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
            "spent": self.spent,
        }

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        beside = {*cls.FORMAT.header(), "aio", "tied"}  # the last two by ``dsexplore aio --json``, made from the others
        values = {key: value for key, value in loaded.items() if key not in beside}
        result = value_of(cls, values, "the result")
        for at, slice_ in enumerate(result.measured):
            if not (slice_.sample.bytes and slice_.sample.seconds):
                raise ValueError(f"measured[{at}] has moved 0 bytes, or in 0 s")
        for at, reference in enumerate(result.references):
            if not reference.rates:
                raise ValueError(f"references[{at}].rates has no rate")
        return result

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *self._other_lines()])

    def lines(self) -> list[str]:
        """Return the disk, the recommended setting and its rates in each direction, one statement per line."""
        together = f", {self.conditions.processes} processes at once" if self.conditions.processes > 1 else ""
        how = self.conditions
        lines = [f"{self.disk.label}; {how.mode} mode by {how.backend} (loop in {how.loop}){together}"]
        if how.further_folders:
            lines.append(f"Measured together with {', '.join(how.further_folders)}: rates are of all disks together.")
        if self.interrupted:
            lines.append("Interrupted: the results so far.")
        if self.conditions.left_out:
            lines.append(self.conditions.left_out)
        if self.spent:
            limit = format_bytes(self.conditions.most_written or 0)
            lines.append(f"Ended when the {limit} that may be written were used up: raise max_written for more rounds.")
        if not self.rounds:
            return [*lines, "No setting was compared with the default yet."]
        best = self.best()
        lines.append(best.sentence())
        if len(best.tied) > 1:
            lines.append(f"Less than 5 % apart, the cheapest first: {'; '.join(map(str, best.tied))}.")
        chosen = by_transfer(m for m in self.deciding if m.sample.config == best.config)
        for operation in self.operations:
            for transfer, part in chosen.items():
                name = f"{operation} of {format_bytes(transfer)} tensors" if len(chosen) > 1 else operation
                lines += _direction_lines(name, [m.sample for m in part if m.sample.operation == operation])
        lines += self._lines_of_cache([m.sample for m in self.deciding if m.sample.config == best.config])
        overwritten = f" ({self.conditions.write_mode})" if self.bytes_written else ""
        return [*lines, f"{format_bytes(self.bytes_written)} written{overwritten} in {self.elapsed:.0f} s"]

    def _lines_of_cache(self, samples: list[Sample]) -> Iterator[str]:
        """Yield a sentence if writes to a virtual disk are durable faster than drives write."""
        durable = [sample.durable_rate for sample in samples if sample.operation == "write"]
        if self.disk.is_virtual and durable and median(durable) > _FASTER_THAN_DRIVES:
            yield (
                f"{self.disk.device} is a virtual disk, and no usual drive writes {format_rate(median(durable))} with "
                "fsync: a cache of its host answered. More data than that cache holds may be written slower."
            )

    def _other_lines(self) -> Iterator[str]:
        """Yield the gain of huge pages, the other finalists, the references' rates, and why one did not run."""
        yield from memory_lines(self.references, self.operations)
        chosen = self.best().config if self.rounds else self.control
        yield from advice_lines(self.references, self.operations, chosen, self.control)
        if self.rounds:
            yield from self._lines_of_others(self.best().config)
        for r in self.references:
            note = r.note if str(r.config) in r.note else f"{r.config}; {r.note}"
            yield f"{r.name}, {r.operation}: median {format_rate(r.rate)}, n {len(r.rates)}; {note}"
        for name, reason in sorted(self.conditions.unavailable.items()):
            yield f"{name} did not run: {' '.join(reason.split())}"

    def _lines_of_others(self, chosen: AioConfig) -> Iterator[str]:
        """Yield a line for each setting that stayed to the end beside the recommended one, the fastest first."""
        means = {config: ratio_interval(list(ratios.values())) for config, ratios in self._contenders().items()}
        others = sorted(means.keys() - {chosen}, key=lambda config: -means[config].value)
        for config in others[:_MOST_OTHERS]:
            samples = [m.sample for m in self.deciding if m.sample.config == config]
            rates = {op: [s.rate for s in samples if s.operation == op] for op in self.operations}
            given = ", ".join(f"{op} {format_rate(median(rates[op]))}" for op in rates)
            beside = "the default" if config == self.control else f"{means[config]} × the default"
            yield f"{config}: {given}; {beside}"
        if len(others) > _MOST_OTHERS:
            yield f"… and {len(others) - _MOST_OTHERS} slower settings"


def _direction_lines(name: str, samples: list[Sample]) -> Iterator[str]:
    """Yield rate, rate with fsync, and latencies of one setting in one direction."""
    rates = [sample.rate for sample in samples]
    spread = f"{format_rate_range(min(rates), max(rates))}, " if len(rates) > 1 else ""
    yield f"{name}: median {format_rate(median(rates))}, {spread}n {len(rates)}"
    if any(sample.fsync_seconds for sample in samples):
        yield f"{name} with fsync: median {format_rate(median([sample.durable_rate for sample in samples]))}"
    p50, p95, p99 = (median([getattr(s, name) for s in samples]) * 1e3 for name in ("p50", "p95", "p99"))
    cpu = median([sample.cpu_ms_per_gib for sample in samples])
    yield (
        f"{name} latency of a request: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}, "
        f"longest {max(sample.longest for sample in samples) * 1e3:.2f} ms; {cpu:.1f} ms of CPU per GiB"
    )


def _sizes(transfers: Sequence[int]) -> str:
    return ", ".join(map(format_bytes, transfers)) or "sizes not recorded"
