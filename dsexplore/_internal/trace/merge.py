"""Merge the traces of several ranks into one.

Events and parameters carry their rank and are concatenated in the order of ranks. Modules and groups have no rank: a
module becomes one row with the largest number of calls on any rank, and parents come before children. Each process
names its process groups itself, so two ranks may use one name for different groups; then the later one is renamed
``name@rank``, in its events too. Measured times are put on the first rank's clock (`trace.clocks`). Messages
that one rank sends and the other does not receive are listed in the notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.trace import unmatched
from dsexplore._internal.trace.call_journal import is_of_one_job
from dsexplore._internal.trace.clocks import align
from dsexplore._internal.trace.represented_ranks import joined
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.units import format_ranks
from dsexplore._internal.user_warnings import warn

_NO_TRACE = " ranks left no trace: "


def ranks_of(tables: Tables) -> tuple[int, ...]:
    """Return the ranks in a trace's info and in its rows, sorted."""
    columns = [table["rank"] for table in (tables.events, tables.parameters) if len(table)]
    seen = set(tables.info.ranks).union(*(column.unique().to_list() for column in columns))
    return tuple(sorted(rank for rank in seen if rank is not None))


def merge_as_they_come(
    parts: Iterable[Tables], what: str, total: int | None, *, is_whole: bool = False, same_attempt: bool = False
) -> Tables:
    """Merge tables that are read or recorded one by one, with a progress bar; see `merge_tables`.

    Ctrl-C merges the parts read so far, if any; a warning and the trace's notes say so.

    Args:
        parts: tables of one rank or more each.
        what: activity that the progress bar and the warning show, such as ``reading trace/``.
        total: number of parts; None if unknown.
        is_whole: True if the parts are all that the recording left, see `merge_tables`.
        same_attempt: whether to omit files of earlier attempts of the job.
    """
    tables: list[Tables] = []
    cut = ""
    with track(what, total, "traces") as work:
        try:
            for part in parts:
                tables.append(part)
                work.advance()
        except KeyboardInterrupt:
            if not tables:
                raise
            cut = f"{what} was interrupted: this trace is incomplete, with {len(tables)} of {total or 'several'} traces"
            warn(cut)
    if same_attempt:
        newest = of_newest_attempt(tables)
        is_whole = is_whole or len(newest) < len(tables)
        tables = newest
    return merge_tables(tables, cut, is_whole=is_whole)


def of_newest_attempt(parts: Sequence[Tables]) -> list[Tables]:
    """Return the tables saved by the newest attempt of a job; the first one's notes name the ranks left out.

    Args:
        parts: tables of files that several attempts may have saved.
    """
    with_attempt = [part for part in parts if part.info.attempt]
    newest = max(with_attempt, key=lambda part: max(part.info.began, default=0), default=None)
    if newest is None:
        return list(parts)
    attempt = newest.info.attempt
    of_attempt = [part for part in parts if part.info.attempt in ("", attempt)]
    earlier = [part.info for part in parts if part.info.attempt not in ("", attempt)]
    of_earlier_blocks = [rank for info in earlier if is_of_earlier_block(info, attempt) for rank in info.ranks]
    of_earlier_attempts = [rank for info in earlier if not is_of_earlier_block(info, attempt) for rank in info.ranks]
    notes = []
    if of_earlier_blocks:
        notes.append(
            f"the file of {format_ranks(of_earlier_blocks)} is of an earlier block that was saved there, and left out"
        )
    if of_earlier_attempts:
        ranks = format_ranks(of_earlier_attempts)
        notes.append(f"the file of {ranks} is of an earlier attempt of the job, and left out")
    blocks = attempt.rpartition(" ")[2]
    if blocks.isdecimal() and int(blocks) > 1:
        notes.append(f"{int(blocks):,} blocks of the job were saved there: this is the last, in place of those before")
    return [_add_notes(of_attempt[0], notes), *of_attempt[1:]]


def _add_notes(tables: Tables, notes: Sequence[str]) -> Tables:
    """Return the tables with further notes; each note is kept once."""
    return replace(tables, info=replace(tables.info, notes=tuple(dict.fromkeys((*tables.info.notes, *notes)))))


def is_of_earlier_block(info: TraceInfo, attempt: str) -> bool:
    """Return True if a file is of another block of the job's attempt that `attempt` names."""
    return info.attempt != attempt and is_of_one_job(info.attempt, attempt)


def merge_tables(
    parts: Sequence[Tables],
    cut: str = "",
    *,
    is_whole: bool = False,
    shares_clock: bool = False,
    ranks: Sequence[int] | None = None,
) -> Tables:
    """Merge the tables of several ranks into one.

    Args:
        parts: tables of one rank or more each.
        cut: note on why parts are missing; empty if none are.
        is_whole: True if the parts are all that the recording left. Then missing ranks are noted for a single part too.
        shares_clock: True if all ranks read one clock although their traces do not name it; see `TraceInfo.clocks`.
        ranks: ranks that were to record something; None for all ranks of the world.

    Raises:
        UsageError: there are no parts, a rank is in two of them, or they are of different worlds.
    """
    if not parts:
        raise UsageError("merge was given no traces: give one or more, each of another rank")
    with_ranks = sorted(((ranks_of(part), part) for part in parts), key=lambda pair: pair[0])
    info = _merged_info(with_ranks, cut, ranks if is_whole or len(parts) > 1 else ())
    if len(parts) == 1:
        return replace(parts[0], info=info)
    parts = _distinct_groups(with_ranks)
    merged = Tables(
        events=pl.concat([part.events for part in parts]),
        parameters=pl.concat([part.parameters for part in parts]),
        kernels=pl.concat([part.kernels for part in parts]),
        memory=pl.concat([part.memory for part in parts]),
        numerics=pl.concat([part.numerics for part in parts]),
        differing=pl.concat([part.differing for part in parts]),
        io=pl.concat([part.io for part in parts]),
        modules=merge_modules([part.modules for part in parts]),
        groups=pl.concat([part.groups for part in parts]).unique("group", keep="first", maintain_order=True),
        info=info,
    )
    if not info.simulated:
        merged = align(merged, shares_clock=shares_clock)
    return _add_notes(merged, unmatched.notes(merged))


def merge_modules(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Merge tables of modules into one row per module, with its largest number of calls.

    Parents come before children, and siblings are in the order of their first table.
    """
    rows = (
        pl.concat(tables)
        .group_by("module", maintain_order=True)
        .agg(pl.col("parent", "type", "depth").first(), pl.col("calls").max())
    )
    children: dict[str, list[int]] = {}
    for index, parent in enumerate(rows["parent"]):
        children.setdefault(parent, []).append(index)
    names = rows["module"].to_list()
    known = set(names)
    order: list[int] = []
    roots = [index for parent, below in children.items() if parent not in known for index in below]
    stack = roots[::-1]
    while stack:
        index = stack.pop()
        order.append(index)
        stack += reversed(children.get(names[index], []))
    return rows[order]


def _merged_info(parts: Sequence[tuple[tuple[int, ...], Tables]], cut: str, asked: Sequence[int] | None) -> TraceInfo:
    """Return the merged trace's `TraceInfo`.

    Args:
        parts: ranks and tables of each part.
        cut: note on why parts are missing; empty if none are.
        asked: ranks that were to record; the notes list those without a trace. None for all ranks of the world.

    Raises:
        UsageError: a rank is in two of the parts, or the parts are of different worlds.
    """
    infos = [part.info for _, part in parts]
    first = infos[0]
    seen: set[int] = set()
    for ranks_of_part, _ in parts:
        for rank in ranks_of_part:
            if rank in seen:
                raise UsageError(f"rank {rank} is in two of the traces: merge one trace per rank")
            seen.add(rank)
    for name in ("world_size", "simulated", "target"):
        values = list(dict.fromkeys(getattr(info, name) for info in infos))
        if len(values) > 1:
            raise UsageError(f"{name} is {values[0]!r} in one trace and {values[1]!r} in another: merge one recording")
    notes = list(dict.fromkeys(note for info in infos for note in info.notes))
    if len(infos) > 1:
        notes = [note for note in notes if _NO_TRACE not in note]  # replaced by a note on all parts together
    versions = list(dict.fromkeys(info.torch_version for info in infos))
    if cut:
        notes.append(cut)
    elif not first.simulated:
        asked = range(first.world_size) if asked is None else asked
        if absent := [rank for rank in asked if rank not in seen]:
            notes.append(f"{len(absent)} of {len(asked)}{_NO_TRACE}{format_ranks(absent)}")
    ranks = tuple(sorted(seen))
    mesh = next((info.mesh for info in infos if info.mesh), "")
    return replace(
        first,
        mesh=mesh,
        ranks=ranks,
        stands_for=joined([(info.ranks, info.stands_for) for info in infos]),
        clocks=_values_of_ranks(ranks, infos, "clocks", ""),
        clock_offsets=_values_of_ranks(ranks, infos, "clock_offsets", 0),
        clock_residuals=_values_of_ranks(ranks, infos, "clock_residuals", 0),
        ends=_values_of_ranks(ranks, infos, "ends", ""),
        began=_values_of_ranks(ranks, infos, "began", 0),
        whole_steps=max(info.whole_steps for info in infos),
        torch_version=", ".join(versions),
        notes=tuple(notes),
    )


def _values_of_ranks(ranks: Sequence[int], infos: Sequence[TraceInfo], name: str, unknown: Any) -> tuple[Any, ...]:
    """Return the values of a per-rank field in the order of `ranks`; empty if no info has any."""
    value_of = {rank: value for info in infos for rank, value in zip(info.ranks, getattr(info, name), strict=False)}
    return tuple(value_of.get(rank, unknown) for rank in ranks) if value_of else ()


def _distinct_groups(parts: Sequence[tuple[tuple[int, ...], Tables]]) -> list[Tables]:
    """Return the parts, with a group renamed if an earlier part has other ranks under its name."""
    members: dict[str, list[int]] = {}
    result = []
    for ranks_of_part, part in parts:
        renamed: dict[str, str] = {}
        for name, ranks in part.groups.select("group", "ranks").iter_rows():
            if members.setdefault(name, ranks) != ranks:
                renamed[name] = f"{name}@{ranks_of_part[0] if ranks_of_part else 0}"
                members[renamed[name]] = ranks
        if renamed:
            new = pl.col("group").replace(renamed)
            part = replace(part, events=part.events.with_columns(new), groups=part.groups.with_columns(new))
        result.append(part)
    return result
