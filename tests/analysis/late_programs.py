"""Measured traces of programs that are written down: ranks that vary, clocks that differ, and a rank that is late.

``python -m tests.analysis.late_programs 1000`` draws so many programs and prints those of which the late rank is not
named, or another one is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.clocks import align
from dsexplore._internal.trace.tables import Tables, TraceInfo

EPOCH = 1_700_000_000 * 10**9
JITTERS = ("normal", "exponential", "uniform")
LATE = ("always", "by other times each time", "in half of the steps", "from some step on")
CLOCKS = ("one", "apart", "unknown")


@dataclass(frozen=True)
class Program:
    """Ranks that compute and reduce, step by step; seconds."""

    ranks: int
    steps: int
    jitter: float
    jitter_kind: str = "normal"
    late_rank: int | None = None
    late_by: float = 0.0
    how_late: str = "always"
    late_from: int = 0
    """The first step in which the late rank is late."""
    mesh: bool = False
    """True if pairs of ranks, and then every second rank, reduce before all ranks do."""
    clocks: str = "one"
    notice: float = 1e-5
    """Mean seconds in which a process notices the end of a collective."""
    seed: int = 0

    @property
    def groups(self) -> dict[str, list[int]]:
        """Ranks of each group, in the order in which a step uses the groups."""
        found: dict[str, list[int]] = {}
        if self.mesh and self.ranks % 2 == 0 and self.ranks >= 4:
            found |= {f"pair {first}": [first, first + 1] for first in range(0, self.ranks, 2)}
            found |= {f"every second {first}": list(range(first, self.ranks, 2)) for first in range(2)}
        return {**found, "all": list(range(self.ranks))}

    def trace(self) -> Tables:
        """Return what the ranks would record, put on one clock as far as that can be."""
        draw = np.random.default_rng(self.seed)
        events = pl.DataFrame(
            list(self._events(draw)),
            schema=["rank", "step", "seq", "group", "group_seq", "begin", "until"],
            orient="row",
        )
        ahead = draw.uniform(-5, 5, self.ranks) if self.clocks == "apart" else np.zeros(self.ranks)
        shift = pl.col("rank").replace_strict(dict(enumerate(ahead.tolist())), return_dtype=pl.Float64)
        times = [
            (((pl.col(name) + shift) * 1e9).cast(pl.Int64) + EPOCH).alias(column)
            for name, column in (("begin", "start"), ("until", "end"))
        ]
        events = events.with_columns(
            *times, *(pl.lit(value).alias(name) for name, value in _COMMON.items()), axis=_AXIS
        )
        columns = [
            (pl.col(name) if name in events.columns else pl.lit(None)).cast(kind).alias(name)
            for name, kind in schema.EVENTS.items()
        ]
        rows = [(name, "", "", ranks, len(ranks), "gloo", "work") for name, ranks in self.groups.items()]
        names = {"one": ("host",) * self.ranks, "apart": tuple(f"host {rank}" for rank in range(self.ranks))}
        info = TraceInfo(world_size=self.ranks, ranks=tuple(range(self.ranks)), clocks=names.get(self.clocks, ()))
        groups = pl.DataFrame(rows, schema=schema.GROUPS, orient="row")
        return align(Tables(events=events.select(columns).sort("rank", "seq"), groups=groups, info=info))

    def _events(self, draw: np.random.Generator) -> Iterator[tuple[object, ...]]:
        now, count, numbers = np.zeros(self.ranks), [0] * self.ranks, dict.fromkeys(self.groups, 0)
        for step in range(self.steps):
            now += 0.02 + self._jitter(draw)
            if self.late_rank is not None:
                now[self.late_rank] += self._late_by(draw, step)
            for group, ranks in self.groups.items():
                begins, took = now[ranks].copy(), draw.uniform(1e-3, 4e-3)
                for rank, begin in zip(ranks, begins, strict=True):
                    now[rank] = begins.max() + took + draw.exponential(self.notice)
                    yield rank, step, count[rank], group, numbers[group], begin, now[rank]
                    count[rank] += 1
                    now[rank] += draw.exponential(1e-4)
                numbers[group] += 1

    def _jitter(self, draw: np.random.Generator) -> np.ndarray:
        if self.jitter_kind == "normal":
            return self.jitter * np.abs(draw.normal(0, 1, self.ranks))
        if self.jitter_kind == "exponential":
            return draw.exponential(self.jitter, self.ranks)
        return draw.uniform(0, 2 * self.jitter, self.ranks)

    def _late_by(self, draw: np.random.Generator, step: int) -> float:
        is_on_time = step < self.late_from or (self.how_late == "in half of the steps" and step % 2)
        part = draw.uniform(0.5, 1.5) if self.how_late == "by other times each time" else 1.0
        return 0.0 if is_on_time else self.late_by * part


_AXIS = pl.when(pl.col("group") != "all").then(pl.col("group").str.head(5).str.strip_chars()).otherwise(pl.lit(""))
_COMMON = {
    "op": "all_reduce",
    "state": "completed",
    "phase": "backward",
    "owner": "Net",
    "trigger": "Net",
    "message_bytes": 1024,
    "wire_bytes": 1024,
    "group_size": 2,
    "source": "train.py:7",
    "dtype": "float32",
    "cause": "",
    "implicit": False,
    "is_async": False,
    "is_object": False,
    "raw_op": "c10d::allreduce_",
}


def drawn(seed: int) -> Program:
    """Return a program of so many kinds; three of four have a late rank."""
    draw = np.random.default_rng(seed)
    ranks, jitter = int(draw.integers(2, 17)), 10 ** draw.uniform(-5, -2.5)
    how = str(draw.choice(LATE))
    steps = int(draw.integers(6, 40) if how == "always" else draw.integers(20, 40))
    notice = 10 ** draw.uniform(-6, -3.5)
    return Program(
        ranks=ranks,
        steps=steps,
        jitter=jitter,
        jitter_kind=str(draw.choice(JITTERS)),
        late_rank=int(draw.integers(ranks)) if draw.random() < 0.75 else None,
        late_by=max(jitter, notice) * draw.uniform(20, 200) + draw.uniform(1e-3, 1e-2),
        how_late=how,
        late_from=int(draw.integers(1, steps - 8)) if how == "from some step on" else 0,
        mesh=bool(draw.random() < 0.4),
        clocks=str(draw.choice(CLOCKS)),
        notice=notice,
        seed=seed,
    )


def is_right(program: Program) -> bool:
    """Return whether the late rank is named and no other, and none where there is none."""
    expected = [] if program.late_rank is None else [program.late_rank]
    return [late.rank for late in Skew(program.trace()).late_ranks] == expected


def main(count: int) -> int:
    wrong = [program for program in map(drawn, range(count)) if not is_right(program)]
    for program in wrong:
        print(program, Skew(program.trace()).verdict(), sep="\n  ")
    print(f"{count:,} programs, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
