"""Find the process groups of a profiled rank: those listed in its file, and those that only its collectives name.

What a file tells about the group of a collective depends on the version of torch:

| torch | group of a collective |
|---|---|
| since 2.3 | name and ranks; if the text of many ranks is cut, they are read from the file's list of groups, or from \
the first rank and the stride that the collective states |
| 2.1, 2.2 | number of ranks; the group is known if exactly one listed group has that size, or if it has all ranks |
| before | nothing; the group is assumed to have all ranks if the file lists no group, or only groups of all ranks |

A group of unknown ranks is named after the rank, so that it is not confused with another rank's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall, listed
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.limits import MOST_RANKS, checked_ranks

Ranks = tuple[int, ...]


class _Group(NamedTuple):
    """A process group as the file describes it; values that it lacks are empty."""

    description: str = ""
    backend: str = ""
    ranks: Ranks = ()
    size: int = 0
    """0 if unknown."""


def world_size_of_profile(trace: ProfilerFile) -> int:
    """Return the number of ranks of the job, or the least number that the file's groups need; 0 if it names no ranks.

    Raises:
        TypeError, ValueError: the file names ranks or a number of ranks that no job has.
    """
    named = max((max(group.ranks) + 1 for group in _listed(trace, 0).values() if group.ranks), default=0)
    size = max(int(trace.distributed.get("world_size") or 0), named)
    checked_ranks([size - 1] if size else [])
    return size


class GroupOfCall(NamedTuple):
    """The process group of one collective."""

    name: str
    axis: str
    ranks: Ranks
    """Empty if unknown."""
    size: int
    """Number of ranks; 0 if unknown."""


class ProfilerGroups:
    """The groups of one rank.

    Args:
        trace: file of the rank.
        rank: the rank.
        world_size: number of ranks of the job.
    """

    def __init__(self, trace: ProfilerFile, rank: int, world_size: int) -> None:
        self._groups = _listed(trace, world_size)
        self._file = trace.file.name
        self._rank = rank
        self.world_size = world_size
        self._world = tuple(range(world_size))
        self._assumed = 0
        self._of_unknown_size = 0

    def of(self, call: ProfilerCall) -> GroupOfCall:
        """Return the group of a collective, and remember what the collective states about it."""
        arguments = call.arguments
        size = int(arguments.get("Group size") or 0)
        if not 0 < size <= MOST_RANKS:
            size = 0
        stated_name = arguments.get("Process Group Name")
        name = self._name_by_size(size) if stated_name is None else str(stated_name)
        group = self._groups.get(name, _Group())
        ranks = listed(arguments.get("Process Group Ranks")) or group.ranks or _evenly_spaced(arguments, size)
        if ranks and not 0 <= min(ranks) <= max(ranks) < len(self._world):
            ranks = ()
        if not ranks and size == len(self._world):
            ranks = self._world
        description = str(arguments.get("Process Group Description") or group.description)
        size = size or len(ranks) or group.size
        self._of_unknown_size += not size
        self._groups[name] = group._replace(description=description, ranks=ranks, size=size)
        return GroupOfCall(name=name, axis=axis_of(description), ranks=ranks, size=size)

    def _name_by_size(self, size: int) -> str:
        """Return the name of the group of a collective that states only the group's size; 0 if not even that."""
        if not size and not self._groups and len(self._world) > 1:
            self._assumed += 1
            size = len(self._world)
        fitting = {name: group.ranks for name, group in self._groups.items() if not size or group.size == size}
        if fitting and len(set(fitting.values())) == 1:
            return next(iter(fitting))
        if size and size == len(self._world):
            self._groups.setdefault("", _Group(ranks=self._world, size=size))
            return ""
        return f"{size} ranks, of rank {self._rank}" if size else f"a group of rank {self._rank}"

    def rows(self, calls: Sequence[ProfilerCall]) -> Iterable[tuple[Any, ...]]:
        """Yield the rows of `schema.GROUPS`.

        Args:
            calls: collectives of the rank, which tell how times were measured.
        """
        timing = "cuda" if any(call.is_kernel for call in calls) else "work"
        for name, group in self._groups.items():
            size = len(group.ranks) or group.size or 1
            yield name, axis_of(group.description), "", list(group.ranks), size, group.backend, timing

    def notes(self) -> Iterable[str]:
        """Yield notes on groups that the file does not name, or whose size it does not tell."""
        if self._assumed:
            yield f"{self._file} names no groups: its collectives are taken to be of all {len(self._world)} ranks"
        if self._of_unknown_size:
            count = f"{self._of_unknown_size:,} of its collectives"
            yield f"{self._file} does not say how many ranks {count} have: their wire bytes are unknown"


def _evenly_spaced(arguments: Mapping[str, Any], size: int) -> Ranks:
    """Return the ranks of a large group, from the first rank and the stride that a collective states.

    Empty if they contradict the text of the first ranks, ``"[0, 2, 4, ...]"``.
    """
    first, step = arguments.get("Global rank start"), arguments.get("Global rank stride")
    if not isinstance(first, int) or not isinstance(step, int) or first < 0 or step < 1:
        return ()
    if first + step * size > MOST_RANKS + step:
        return ()
    ranks = tuple(range(first, first + step * size, step))
    before, _, _ = str(arguments.get("Process Group Ranks", "")).partition("...")
    first_ranks = tuple(int(rank) for rank in re.findall(r"\d+", before))
    return ranks if first_ranks == ranks[: len(first_ranks)] else ()


def axis_of(description: str) -> str:
    """Return the mesh axis from the description of a mesh's group, else the description itself; empty if none."""
    if description in ("default_pg", "undefined", ""):
        return ""
    return description.removeprefix("mesh_")


def _listed(trace: ProfilerFile, world_size: int) -> dict[str, _Group]:
    """Return {name: group} of the file's ``distributedInfo``, which lists no ranks for a group of all ranks.

    Raises:
        TypeError, ValueError: the file names ranks or a number of ranks that no job has.
    """
    groups = {}
    for entry in trace.distributed.get("pg_config") or ():
        if not isinstance(entry, dict):
            continue
        name = entry.get("name") if entry.get("pg_name") is None else entry["pg_name"]
        ranks = listed(entry.get("ranks")) or ()
        size = len(ranks) or int(entry.get("group_size") or entry.get("pg_size") or 0)
        checked_ranks([*ranks, size - 1] if size else [])
        if not ranks and size and size == world_size:
            ranks = tuple(range(size))
        groups["" if name is None else str(name)] = _Group(
            description=str(entry.get("pg_desc") or ""),
            backend=str(entry.get("backend_config") or trace.distributed.get("backend") or ""),
            ranks=ranks,
            size=size,
        )
    return groups
