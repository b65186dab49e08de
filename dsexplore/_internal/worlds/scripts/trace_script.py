"""Run a script as one rank, as several, or as one rank of each kind, which represents all ranks like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsexplore._internal.analysis.likeness import digests, first_difference
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import Work, track
from dsexplore._internal.trace.represented_ranks import ranks_text
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.real import server_handle
from dsexplore._internal.worlds.scripts.distinct_ranks import Distinct, Outcome, Search
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.rank_axes import Axis, ObservedGroup, Progression, axes_of
from dsexplore._internal.worlds.scripts.rank_conditions import WorldLayout, conditions_on_rank
from dsexplore._internal.worlds.scripts.rank_processes import (
    RankProcesses,
    ScriptEnd,
    finished,
    parse_ranks,
    rank_processes,
    run_as_ranks,
)
from dsexplore._internal.worlds.scripts.run_as_rank import Setting, run_as_rank
from dsexplore._internal.worlds.scripts.shard_shapes import sharded_shapes

DISTINCT = "distinct"
_MAX_NAMED = 3
"""Maximal number of ranks, axes or conditions that a note names."""


def trace_script(
    program: Program, setting: Setting, ranks: str | Sequence[int] | None
) -> tuple[Trace, list[ScriptEnd]]:
    """Run a script as the ranks that were asked for; return their trace, and the end of the script on each.

    Args:
        program: the program to run.
        setting: its world.
        ranks: the ranks, each of which runs in a process of its own: see `parse_ranks` and `DISTINCT`. None runs the
            setting's rank in this process.

    Raises:
        UsageError: no such script, or sizes of the world that contradict each other.
    """
    if ranks == DISTINCT and not setting.rank:
        return trace_distinct_ranks(program, setting)
    setting = replace(setting, skip_repeats=False)  # each rank represents only itself
    if ranks is None:
        run = run_as_rank(program, setting)
        return run.trace, [replace(ScriptEnd.of(setting.rank, run.error), error=run.error)]
    if setting.rank:
        raise UsageError(f"rank={setting.rank} and ranks={ranks!r}: give one of the two")
    return run_as_ranks(program, setting, parse_ranks(ranks, setting.world().size))


def trace_distinct_ranks(program: Program, setting: Setting) -> tuple[Trace, list[ScriptEnd]]:
    """Run a script as one rank of each kind, and merge their traces into one that says which ranks each represents.

    Returns:
        the trace, and the end of the program on each rank that was run. If it failed on the first or the last rank,
        or was interrupted, the trace has the ranks that were run until then, and each represents only itself.

    Raises:
        UsageError: no such script, sizes of the world that contradict each other, or too many ranks that differ.
        KeyboardInterrupt: it was interrupted before any rank was done.
    """
    setting = replace(setting, skip_repeats=setting.skip_repeats and not setting.costs)
    with rank_processes(program, setting) as processes, track("running distinct ranks", unit="ranks") as work:
        try:
            distinct = _search(processes, setting, work)
            notes = _notes(distinct, processes, setting) if distinct is not None else []
        except KeyboardInterrupt:
            if not processes.ends:
                raise
            distinct = None
            notes = [f"interrupted: the {len(processes.ends)} ranks of this trace represent only themselves"]
        if distinct is None:
            trace = processes.merged(sorted(end.rank for end in processes.ends))
        else:
            trace = _merge_representatives(processes, distinct)
    notes += processes.notes
    return finished(trace, setting, ends=processes.ends, notes=notes), processes.ends


def _search(processes: RankProcesses, setting: Setting, work: Work) -> Distinct | None:
    """Find the distinct ranks; None if the program fails on the first ranks that are run."""
    world = setting.world()
    first = list(dict.fromkeys((0, world.size - 1)))
    processes.run(first, work)
    if any(end.status != 0 for end in processes.ends):
        return None
    pilot = processes.ends[0].observed
    server_handle.preload(pilot.modules, processes.folder)
    axes = axes_of(pilot.groups, world.spec, world.size)
    names = _names(pilot.groups, axes)

    def trace_ranks(ranks: Sequence[int]) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}

        def keep_outcome(rank: int) -> None:
            outcomes[rank] = _outcome(processes, rank, names)

        processes.run(ranks, work, on_end=keep_outcome)
        return outcomes

    search = Search(
        world_size=world.size,
        axes=axes,
        tests=conditions_on_rank(pilot.files, WorldLayout(world.size, world.ranks_per_node, axes)),
        trace_ranks=trace_ranks,
        outcomes={rank: _outcome(processes, rank, names) for rank in first},
    )
    return search.find()


def _names(groups: Sequence[ObservedGroup], axes: Sequence[Axis]) -> dict[str, Progression]:
    """Return {name of an axis or a flattened mesh: its stride and size}."""
    named = {group.name: group.progressions[0] for group in groups if group.name and len(group.progressions) == 1}
    return {**named, **{axis.name: (axis.stride, axis.size) for axis in axes}}


def _outcome(processes: RankProcesses, rank: int, names: Mapping[str, Progression]) -> Outcome:
    """Return the outcome of a rank that has ended; ranks that end differently have different digests."""
    tables = processes.tables(rank)
    (end,) = (rank_end for rank_end in processes.ends if rank_end.rank == rank)
    shapes, explained = sharded_shapes(tables, rank, names)
    digest, full_digest = (f"{text} {end.status} {end.traceback}" for text in digests(tables, explained))
    return Outcome(digest, shapes, full_digest)


def _merge_representatives(processes: RankProcesses, distinct: Distinct) -> Trace:
    """Merge the traces of the representatives, and record the ranks that each represents."""
    trace = processes.merged(rank_class.representative for rank_class in distinct.classes)
    texts = {rank_class.representative: ranks_text(rank_class.ranks) for rank_class in distinct.classes}
    info = trace.info
    return Trace(replace(trace.tables, info=replace(info, stands_for=tuple(texts[rank] for rank in info.ranks))))


def _notes(distinct: Distinct, processes: RankProcesses, setting: Setting) -> list[str]:
    """Return notes on the representatives: how many, by what they differ, and what this is inferred from."""
    size = setting.world().size
    kinds = len(distinct.classes)
    checks = len(distinct.traced) - kinds
    without_effect = _listed(distinct.without_effect)
    if kinds == 1:
        summary = f"1 rank stands for all {size:,}: nothing differs"
        summary += f" by {without_effect}" if without_effect else ""
    else:
        differ = _listed(distinct.differ) or "the sizes of their shards alone"
        summary = f"{kinds} ranks stand for all {size:,}: they differ by {differ}"
        summary += f", and not by {without_effect}" if without_effect else ""
    notes = [
        f"{summary}; {len(distinct.traced)} were run and their traces compared, {checks} of them to check",
        "which ranks do the same is inferred from those that were run, from groups, shard sizes and conditions on the "
        "rank in the program's own files; a difference that shows in none of these is not found",
    ]
    for rank, representative in distinct.unexplained[:_MAX_NAMED]:
        difference = first_difference(processes.tables(rank), processes.tables(representative))
        notes.append(
            f"rank {rank} differs from rank {representative}, although nothing shows why ({difference}), so others may "
            "differ too: the numbers of ranks are not certain"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    """List names, at most `_MAX_NAMED` of them: ``"dp, tp, pp and 2 more"``."""
    named = ", ".join(names[:_MAX_NAMED])
    omitted = len(names) - _MAX_NAMED
    return f"{named} and {omitted} more" if omitted > 0 else named
