"""Write traces for other tools: comma-separated values, and Chrome's trace format, which Perfetto reads."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import polars as pl

from dsexplore._internal.output import writing
from dsexplore._internal.trace import measured_time, schema
from dsexplore._internal.trace.tables import Tables

_SLICE = 1000
"""Length in nanoseconds of an event without measured times: one microsecond, the format's unit."""

_OUTSIDE_ARGUMENTS = frozenset({"rank", "op", "start", "end"})
"""Columns that a slice shows by its place and name, and not among its arguments."""


def write_csv(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write the events with a header line and return the path.

    A shape is written ``8x1024``, split sizes ``3 5``, and null as an empty field.
    """
    shape = pl.col("shape").cast(pl.List(pl.String)).list.join("x")
    splits = pl.col("send_splits", "recv_splits").cast(pl.List(pl.String)).list.join(" ")
    with writing(path) as unfinished:
        tables.events.with_columns(shape, splits).write_csv(unfinished)
    return Path(path)


def write_perfetto(tables: Tables, path: str | os.PathLike[str]) -> Path:
    """Write a timeline with one process per rank and one track per process group, and return the path.

    Measured times count from the first start (``otherData.epoch_ns``). An event that had not ended when the recording
    did has no length, and one that was never sent is drawn at the start of the event before it. If nothing was
    measured, every event is drawn at its position in its rank's program order, one microsecond long, and
    ``otherData.time`` says so. A track cannot show overlapping events unless one contains the other, so a group whose
    collectives overlap gets more tracks: each event takes the first free one. Worked example: starts and ends (0, 10),
    (2, 5), (6, 12) take tracks 0, 1, 1.
    """
    is_measured = measured_time.is_timed(tables.events)
    events = _timed(tables.events, is_measured)
    other = {
        "time": "measured" if is_measured else "program order: one microsecond per event, not a duration",
        "epoch_ns": tables.events["start"].min() or 0,
        "info": asdict(tables.info),
    }
    opener: Callable[..., Any] = partial(gzip.open, compresslevel=3) if Path(path).suffix == ".gz" else open
    with writing(path) as unfinished, opener(unfinished, "wt", encoding="utf-8") as out:
        out.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(other)}, "traceEvents": [\n')
        _write_joined(out, chain(_track_names(events, tables.groups), _slices(events)))
        out.write("\n]}\n")
    return Path(path)


def _write_joined(out: IO[str], lines: Iterable[str]) -> None:
    """Write lines with a comma between them, as in a JSON list."""
    comma = ""
    for line in lines:
        out.write(comma + line)
        comma = ",\n"


def _timed(events: pl.DataFrame, is_measured: bool) -> pl.DataFrame:
    """Return the events with columns ``ts`` and ``dur`` in ns, and the track ``tid`` within their rank, from 1."""
    if is_measured:
        start = measured_time.begin(events)
        length = measured_time.end(events) - start
    else:
        start = pl.int_range(pl.len()).over("rank") * _SLICE
        length = pl.lit(_SLICE, pl.Int64)
    events = events.with_columns(start.alias("ts"), length.alias("dur"))
    events = events.with_columns(_lanes(events) if is_measured else pl.lit(0).alias("lane"))
    tracks = events.select("rank", "group", "lane").unique().sort("rank", "group", "lane")
    tracks = tracks.with_columns((pl.int_range(pl.len()).over("rank") + 1).alias("tid"))
    return events.join(tracks, on=("rank", "group", "lane"), how="left", maintain_order="left")


def _lanes(events: pl.DataFrame) -> pl.Series:
    """Return each event's track among those of its rank and group, from 0: the first that is free at its start."""
    lanes = [0] * events.height
    busy: dict[tuple[int, str], list[int]] = {}
    ordered = events.with_row_index().sort("ts", "dur", "index")
    for index, rank, group, start, length in ordered.select("index", "rank", "group", "ts", "dur").iter_rows():
        until = busy.setdefault((rank, group), [])
        lane = next((free for free, end in enumerate(until) if end <= start), len(until))
        until[lane : lane + 1] = [start + length]
        lanes[index] = lane
    return pl.Series("lane", lanes, dtype=pl.Int64)


def _track_names(events: pl.DataFrame, groups: pl.DataFrame) -> Iterator[str]:
    """Yield the JSON objects that name and order ranks and their tracks."""
    group_rows = {row["group"]: row for row in groups.iter_rows(named=True)}
    for rank in events["rank"].unique().sort():
        yield json.dumps({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        yield json.dumps({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
    tracks = events.select("rank", "tid", "group", "lane").unique().sort("rank", "tid")
    for rank, tid, group, lane in tracks.iter_rows():
        name = _group_label(group, group_rows.get(group)) + (f" ({lane + 1})" if lane else "")
        yield json.dumps({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}})
        yield json.dumps({"ph": "M", "pid": rank, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})


def _group_label(name: str, group: dict[str, Any] | None) -> str:
    """Return the label of a track, ``dp · 4 ranks · nccl · group 0``, from the group's row, if there is one."""
    if group is None:
        return f"group {name}"
    axis = f"{group['axis']} · " if group["axis"] else ""
    return f"{axis}{group['size']} ranks · {group['backend']} · group {name}"


def _slices(events: pl.DataFrame, at_once: int = 100_000) -> Iterator[str]:
    """Yield each event as a JSON object, converting `at_once` of them together."""
    slice_ = pl.struct(
        pl.col("op").alias("name"),
        pl.col("phase").alias("cat"),
        pl.lit("X").alias("ph"),
        pl.col("rank").alias("pid"),
        pl.col("tid"),
        (pl.col("ts") / 1000).alias("ts"),
        (pl.col("dur") / 1000).alias("dur"),
        pl.struct([name for name in schema.EVENTS if name not in _OUTSIDE_ARGUMENTS]).alias("args"),
    )
    for part in events.iter_slices(at_once):
        yield from part.select(slice_.struct.json_encode())[:, 0]
