"""Reads the evidence of a hang from a trace of real ranks, recorded by dsexplore or imported."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore._internal.analysis.hangs.rank_calls import (
    WITH_TAGS,
    GroupId,
    JobCalls,
    RankCall,
    RankCalls,
    RankEnd,
    kinds,
)
from dsexplore._internal.trace.ends import ENDED_BLOCK, RUNNING
from dsexplore._internal.trace.item_size import item_size
from dsexplore._internal.trace.job_files import EarlierBlock
from dsexplore._internal.trace.merge import ranks_of
from dsexplore._internal.trace.schema import State
from dsexplore._internal.trace.tables import Tables

_COLUMNS = (
    *("rank", "seq", "op", "raw_op", "axis", "group", "message_bytes", "dtype", "source", "batch", "peer", "root"),
    *("start", "end", "state", "is_object", "group_seq", "send_splits", "recv_splits"),
)
_ENDED_EARLY = "the recording ended early"
"""Begin of a note that does not name a rank; `TraceInfo.ends` has more."""
_NO_PROGRESS = re.compile(r"no collective (?:had )?be(?:gan|gun) or ended for ([0-9.e+]+ s)")
"""The time without progress in a note of `early_saves`."""
_WITH_EQUAL_PARTS = ("base", "tensor", "single")
"""Parts of the names of ops to which all ranks pass equal sizes."""


def job_of_trace(
    tables: Tables,
    stacks: Mapping[int, str] | None = None,
    ends: Mapping[int, RankEnd | None] | None = None,
    no_progress_for: str | None = None,
    earlier: Mapping[int, EarlierBlock] | None = None,
) -> JobCalls:
    """Return the calls of each rank, from the merged trace of all ranks.

    Args:
        tables: the merged trace of real ranks.
        stacks: {rank: its stack when it was ended, innermost call first}; None if there are none.
        ends: {rank: how it ended by itself}, which replaces the end in the trace; None to replace none.
        no_progress_for: the time without progress, see `JobCalls.no_progress_for`; None for that in the trace's notes.
        earlier: {rank without calls in the trace: the earlier block that it saved last}; None if there are none.
    """
    ended = {rank: RankEnd.of(text) for rank, text in zip(tables.info.ranks, tables.info.ends, strict=False)}
    ended |= ends or {}
    described = {
        GroupId(name, tuple(ranks)): axis
        for name, ranks, axis in tables.groups.select("group", "ranks", "axis").iter_rows()
    }
    members = {group.name: group for group in described}
    of_kind = kinds(described)
    with_tags = set(tables.groups.filter(pl.col("backend").str.contains_any(list(WITH_TAGS)))["group"])
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    sent = tables.events.filter(~pl.col("op").str.starts_with("switched_off:"))
    columns = [*_COLUMNS, *(["reduction"] if "reduction" in sent.columns else [])]
    for row in sent.select(columns).sort("rank", "seq").iter_rows(named=True):
        by_rank[row["rank"]].append(row)
    recorded = set(ranks_of(tables))
    calls_of = {}
    for rank in range(max(tables.info.world_size, *(rank + 1 for rank in recorded), 1)):
        calls_of[rank] = RankCalls(
            rank,
            _calls(by_rank.get(rank, ()), members, of_kind, with_tags),
            has_evidence=rank in recorded,
            is_whole=rank in recorded,
            stack=(stacks or {}).get(rank, ""),
            end=ended.get(rank),
        )
    calls_of |= {rank: _calls_before_block(calls_of[rank], block) for rank, block in (earlier or {}).items()}
    notes = [note for note in tables.info.notes if not note.startswith(_ENDED_EARLY)]
    if no_progress_for is None:
        no_progress_for = next((match[1] for note in tables.info.notes if (match := _NO_PROGRESS.search(note))), None)
    return _settled(JobCalls(calls_of, len(calls_of), tuple(notes), no_progress_for))


def _calls_before_block(calls: RankCalls, block: EarlierBlock) -> RankCalls:
    """Return the calls of a rank that has not begun the block of the trace, with what it saved of an earlier one."""
    end = None if block.end in (RUNNING, ENDED_BLOCK) else RankEnd.of(block.end)
    if end is not None:
        end = end._replace(text=f"{end.text}, in an earlier block")
    return replace(calls, has_evidence=True, is_whole=True, end=end, earlier=block)


def _settled(job: JobCalls) -> JobCalls:
    """Return the job, with calls of ranks that have ended marked as completed if they completed on another rank.

    Such a rank may have ended before it recorded the end of the call.
    """
    ranks = dict(job.ranks)
    for rank, calls_of_rank in job.ranks.items():
        if calls_of_rank.end is not None and calls_of_rank.pending:
            calls = [
                call._replace(state="completed") if _has_ended_elsewhere(job, call) else call
                for call in calls_of_rank.calls
            ]
            ranks[rank] = replace(calls_of_rank, calls=calls)
    return replace(job, ranks=ranks)


def _has_ended_elsewhere(job: JobCalls, call: RankCall) -> bool:
    if call.state != "scheduled":
        return False
    calls = job.instance_of(call).calls
    return len(call.group.ranks) == 1 or any(not calls[rank].is_pending for rank in calls if rank != call.rank)


def _calls(
    rows: Iterable[dict[str, Any]],
    members: Mapping[str, GroupId],
    of_kind: Mapping[GroupId, str],
    with_tags: Collection[str],
) -> list[RankCall]:
    """Return the calls of one rank.

    Args:
        rows: its events, in program order.
        members: {name of a group: the group}.
        of_kind: {group: its kind}.
        with_tags: the names of groups whose library matches messages by tags.
    """
    numbers: dict[str, int] = defaultdict(int)
    calls = []
    for row in rows:
        is_message = row["op"] in ("send", "recv")
        if not is_message:
            numbers[row["group"]] = numbers[row["group"]] + 1 if row["group_seq"] is None else row["group_seq"] + 1
        group = members.get(row["group"], GroupId(row["group"], (row["rank"],)))
        gathers, elements = row["op"] == "all_gather", _elements(row)
        calls.append(
            RankCall(
                rank=row["rank"],
                position=row["seq"],
                group=group,
                label=row["axis"] or group.title,
                kind=of_kind.get(group, group.name),
                number=numbers[row["group"]],
                op=row["op"],
                state=_state(row),
                sent=None if gathers else elements,
                received=elements if gathers else None,
                dtype=row["dtype"],
                message_bytes=row["message_bytes"],
                pair=_pair(row) if is_message else None,
                root=row["root"],
                source=row["source"],
                batch=row["batch"],
                created=row["start"],
                has_equal_parts=any(part in row["raw_op"] for part in _WITH_EQUAL_PARTS),
                has_tag=row["group"] in with_tags,
                send_splits=_splits(row["send_splits"]),
                recv_splits=_splits(row["recv_splits"]),
                reduction=row.get("reduction", ""),
            )
        )
    return calls


def _elements(row: Mapping[str, Any]) -> int | None:
    """Return the number of elements of a message; None for objects, without bytes, and if its dtype is unknown."""
    width = item_size(row["dtype"])
    if row["is_object"] or not row["message_bytes"] or width is None:
        return None
    return int(row["message_bytes"]) // width


def _splits(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sizes)


def _state(row: Mapping[str, Any]) -> State:
    """Return the state of a call; in files of earlier formats, a call without an end has not completed."""
    if row["state"] is not None:
        state: State = row["state"] or "completed"
        return state
    return "completed" if row["end"] is not None or row["start"] is None else "scheduled"


def _pair(row: Mapping[str, Any]) -> tuple[int, int] | None:
    if row["peer"] is None:
        return None
    return (row["rank"], row["peer"]) if row["op"] == "send" else (row["peer"], row["rank"])
