"""Process groups of a profiled rank: those listed in its file, and those that only its collectives name.

The information on a collective's group depends on the version of torch:

| file | group of a collective |
|---|---|
| since 2.3 | its name and ranks; of many ranks the text is cut, and the file's list of groups has them, or the \
collective their first one and the step between them |
| 2.1, 2.2 | its number of ranks: known if exactly one listed group has that size, or if it is all ranks |
| before | none: assumed to be all ranks if the file lists no group, or only groups of all ranks |

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
    description: str = ""
    backend: str = ""
    ranks: Ranks = ()
    size: int = 0
    """0 if unknown."""


def world_size_of_profile(trace: ProfilerFile) -> int:
    """Return the number of ranks that a file names; 0 if it names none.

    Raises:
        TypeError, ValueError: it names ranks or a number of ranks that no job has.
    """
    named = max((max(group.ranks) + 1 for group in _listed(trace, 0).values() if group.ranks), default=0)
    size = max(int(trace.distributed.get("world_size") or 0), named)
    checked_ranks([size - 1] if size else [])
    return size


class ProfilerGroups:
    """The groups of one rank.

    Args:
        trace: of that rank.
        rank: its number.
        world_size: of the job.
    """

    def __init__(self, trace: ProfilerFile, rank: int, world_size: int) -> None:
        self._groups = _listed(trace, world_size)
        self._file = trace.file.name
        self._rank = rank
        self.world_size = world_size
        self._world = tuple(range(world_size))
        self._assumed = 0
        self._of_unknown_size = 0

    def of(self, call: ProfilerCall) -> tuple[str, str, Ranks, int]:
        """Return name, axis, ranks and size of the group of a collective; a size of 0 is unknown."""
        arguments = call.arguments
        size = int(arguments.get("Group size") or 0)
        size = size if 0 < size <= MOST_RANKS else 0
        named = arguments.get("Process Group Name")
        name = self._unnamed(size) if named is None else str(named)
        group = self._groups.get(name, _Group())
        ranks = listed(arguments.get("Process Group Ranks")) or group.ranks or _evenly_spaced(arguments, size)
        if ranks and not 0 <= min(ranks) <= max(ranks) < len(self._world):
            ranks = ()
        if not ranks and size == len(self._world):
            ranks = self._world
        description = str(arguments.get("Process Group Description") or group.description)
        size = size or len(ranks) or group.size
        self._of_unknown_size += not size
        self._groups[name] = _Group(description, group.backend, ranks, size)
        return name, axis_of(description), ranks, self._groups[name].size

    def _unnamed(self, size: int) -> str:
        """Return the name of the group of a collective that gives at most the group's size."""
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
        """Yield the rows of the groups table."""
        on_gpu = any(call.is_kernel for call in calls)
        for name, group in self._groups.items():
            timing = "cuda" if on_gpu else "work"
            size = len(group.ranks) or group.size or 1
            yield name, axis_of(group.description), "", list(group.ranks), size, group.backend, timing

    def notes(self) -> Iterable[str]:
        """Yield notes on assumptions about groups that are not in the file."""
        if self._assumed:
            yield f"{self._file} names no groups: its collectives are taken to be of all {len(self._world)} ranks"
        if self._of_unknown_size:
            count = f"{self._of_unknown_size:,} of its collectives"
            yield f"{self._file} does not say how many ranks {count} have: their wire bytes are unknown"


def _evenly_spaced(arguments: Mapping[str, Any], size: int) -> Ranks:
    """Return the ranks of a large group, from the first rank and the stride in the file.

    Empty if the text of the ranks, cut as in ``"[0, 2, 4, ...]"``, contradicts them.
    """
    first, step = (arguments.get(f"Global rank {name}") for name in ("start", "stride"))
    if not isinstance(first, int) or not isinstance(step, int) or first < 0 or step < 1:
        return ()
    if first + step * size > MOST_RANKS + step:
        return ()
    ranks = tuple(range(first, first + step * size, step))
    before, _, _ = str(arguments.get("Process Group Ranks", "")).partition("...")
    said = tuple(int(rank) for rank in re.findall(r"\d+", before))
    return ranks if said == ranks[: len(said)] else ()


def axis_of(description: str) -> str:
    """Return the mesh axis if a mesh made the group, else the group's description; empty if there is none."""
    if description in ("default_pg", "undefined", ""):
        return ""
    return description.removeprefix("mesh_")


def _listed(trace: ProfilerFile, world_size: int) -> dict[str, _Group]:
    """Return {name: group} of the file's ``distributedInfo``, which lists no ranks for a group of all ranks."""
    groups = {}
    for group in trace.distributed.get("pg_config") or ():
        if isinstance(group, dict):
            name = str(next((named for named in map(group.get, ("pg_name", "name")) if named is not None), ""))
            backend = str(group.get("backend_config") or trace.distributed.get("backend") or "")
            ranks = listed(group.get("ranks")) or ()
            size = len(ranks) or int(group.get("group_size") or group.get("pg_size") or 0)
            checked_ranks([*ranks, size - 1] if size else [])
            if not ranks and size and size == world_size:
                ranks = tuple(range(size))
            groups[name] = _Group(str(group.get("pg_desc") or ""), backend, ranks, size)
    return groups
