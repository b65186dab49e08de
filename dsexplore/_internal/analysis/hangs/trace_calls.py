"""The evidence of a hang from a trace of real ranks, recorded by dsexplore or imported."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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
"""Start of a note without a rank; `TraceInfo.ends` says more."""
_STOOD = re.compile(r"no collective (?:had )?be(?:gan|gun) or ended for ([0-9.e+]+ s)")
_WITH_EQUAL_PARTS = ("base", "tensor", "single")


def job_of_trace(
    tables: Tables,
    stacks: Mapping[int, str] | None = None,
    ends: Mapping[int, RankEnd | None] | None = None,
    stood: str | None = None,
    earlier: Mapping[int, EarlierBlock] | None = None,
) -> JobCalls:
    """Return the calls of each rank, from the merged trace of all ranks.

    Args:
        tables: of real ranks; a simulation has nothing that could hang.
        stacks: by rank, where it was when it was ended.
        ends: by rank, how it ended by itself, where that is known better than by the trace.
        stood: see `JobCalls.stood`; None for what the trace's notes say.
        earlier: by rank without calls in the trace, what it left of an earlier block.
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
    said = [match[1] for note in tables.info.notes if (match := _STOOD.search(note))]
    return _settled(JobCalls(calls_of, len(calls_of), tuple(notes), said[0] if stood is None and said else stood))


def _calls_before_block(calls: RankCalls, block: EarlierBlock) -> RankCalls:
    """Return what is known of a rank that has not begun the block: it is at its end, or in an earlier one."""
    end = None if block.end in (RUNNING, ENDED_BLOCK) else RankEnd.of(block.end)
    if end is not None:
        end = end._replace(text=f"{end.text}, in an earlier block")
    return replace(calls, has_evidence=True, is_whole=True, end=end, earlier=block)


def _settled(job: JobCalls) -> JobCalls:
    """Return the job where a call of a rank that is gone has ended if it has on another rank.

    Its process may have been gone before it noted that; what has ended nowhere is where it was.
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
    rows: Any, members: Mapping[str, GroupId], of_kind: Mapping[GroupId, str], with_tags: Collection[str]
) -> list[RankCall]:
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
    """Return the state of a call; files of earlier formats tell it by whether there is an end."""
    if row["state"] is not None:
        state: State = row["state"] or "completed"
        return state
    return "completed" if row["end"] is not None or row["start"] is None else "scheduled"


def _pair(row: Mapping[str, Any]) -> tuple[int, int] | None:
    if row["peer"] is None:
        return None
    return (row["rank"], row["peer"]) if row["op"] == "send" else (row["peer"], row["rank"])
