"""Compares what two ranks do, by their traces as text that does not depend on the numbers of ranks.

A peer is written as its distance in the group, a root as its position in the group, and a group as its axis, its size
and the distances between its members. Steps, ops, modules, bytes, shapes, causes and source lines are unchanged. Times,
notes and names of groups are omitted, and so are the local shapes of parameters that the caller can compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from dsexplore._internal.trace.tables import Tables

Line = tuple[str, ...]
"""One event, parameter or module: the word ``event``, ``parameter`` or ``module``, then its values as text."""

_EVENT = (
    *("step", "op", "raw_op", "phase", "trigger", "owner", "message_bytes", "wire_bytes", "dtype", "shape", "implicit"),
    *("cause", "source", "is_async", "is_object", "send_splits", "recv_splits"),
)
_OF_GROUP = ("rank", "group", "axis", "group_size", "peer", "root")
_PARAMETER = ("name", "global_shape", "dtype", "placements", "mesh", "requires_grad", "shared_with")
_MODULE = ("module", "type", "calls")


def lines(tables: Tables) -> Iterator[Line]:
    """Yield the events of one rank in program order, then its parameters, then its modules.

    The line of a parameter ends with its local shape.
    """
    groups = {
        name: (list(ranks), (axis, str(size), _distances(list(ranks))))
        for name, axis, size, ranks in tables.groups.select("group", "axis", "size", "ranks").iter_rows()
    }
    for row in tables.events.select(*_EVENT, *_OF_GROUP).iter_rows(named=True):
        members, group = groups.get(row["group"], ([], (row["axis"], str(row["group_size"]), "")))
        places = [_place(row["rank"], row["peer"], members), _position(row["root"], members)]
        yield ("event", *(str(row[name]) for name in _EVENT), *group, *places)
    for row in tables.parameters.select(*_PARAMETER, "local_shape").iter_rows(named=True):
        yield ("parameter", *(str(row[name]) for name in _PARAMETER), str(row["local_shape"]))
    for row in tables.modules.select(_MODULE).iter_rows(named=True):
        yield ("module", *(str(row[name]) for name in _MODULE))


def digests(tables: Tables, explained: Collection[str] = ()) -> tuple[str, str]:
    """Return two SHA-256 digests of `lines`, equal for ranks that do the same.

    Args:
        tables: the trace of one rank.
        explained: names of parameters whose local shapes the first digest omits; the second digest has them all.
    """
    unexplained, whole = hashlib.sha256(), hashlib.sha256()
    for line in lines(tables):
        whole.update(_bytes(line))
        is_explained = line[0] == "parameter" and line[1] in explained
        unexplained.update(_bytes(line[:-1] if is_explained else line))
    return unexplained.hexdigest(), whole.hexdigest()


def _bytes(line: Line) -> bytes:
    return "\x1f".join(line).encode() + b"\x1e"


def first_difference(tables: Tables, other: Tables) -> str:
    """Describe the first line in which two ranks differ, for a note; empty if there is none."""
    mine, theirs = lines(tables), lines(other)
    for number, line in enumerate(mine):
        against = next(theirs, None)
        if line != against:
            return f"{_text(line)} of one is {_text(against)} of the other (number {number:,})"
    more = next(theirs, None)
    return "" if more is None else f"{_text(more)} is of one alone"


def _text(line: Line | None) -> str:
    """Return a line in words: an event by its op, bytes and source, the rest by kind and name."""
    if line is None:
        return "nothing"
    if line[0] == "event":
        event = dict(zip(_EVENT, line[1:], strict=False))
        return f"{event['op']} of {event['message_bytes']} B at {event['source'] or 'no line'}"
    return f"{line[0]} {line[1]}"


def _distances(ranks: list[int]) -> str:
    """Return the run-length encoded distances between consecutive members: ``8*127`` for 128 ranks 8 apart."""
    parts: list[list[int]] = []
    for before, after in pairwise(ranks):
        if parts and parts[-1][0] == after - before:
            parts[-1][1] += 1
        else:
            parts.append([after - before, 1])
    return " ".join(f"{step}*{count}" for step, count in parts)


def _place(rank: int, peer: Any, members: list[int]) -> str:
    """Return the distance to a peer in the group, modulo its size: 1 for the next rank, and from the last to the first.

    ``-`` for None; ``rank 7`` for a peer that is not in the group.
    """
    if peer is None:
        return "-"
    if rank not in members or peer not in members:
        return f"rank {peer}"
    return str((members.index(peer) - members.index(rank)) % len(members))


def _position(root: Any, members: list[int]) -> str:
    """Return the position of a root in the group; ``-`` for None, ``rank 7`` for a rank that is not in the group."""
    if root is None:
        return "-"
    return str(members.index(root)) if root in members else f"rank {root}"
