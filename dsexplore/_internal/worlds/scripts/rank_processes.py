"""Run a script as several ranks of a simulated world, each in a process of its own, and merge their traces."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import Work, track
from dsexplore._internal.trace.files import rank_file
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace, load
from dsexplore._internal.worlds.real.run_ranks import RankOutcome, run_in_turn
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.scripts.program import Program, exit_status
from dsexplore._internal.worlds.scripts.rank_axes import ObservedWorld
from dsexplore._internal.worlds.scripts.run_as_rank import Setting, earlier_stages, run_as_rank, run_sender
from dsexplore._internal.worlds.scripts.written_files import watched_files, written_by_several
from dsexplore._internal.worlds.simulated import shared_objects
from dsexplore._internal.worlds.simulated.shared_objects import SharedObjects


@dataclass(frozen=True)
class ScriptEnd:
    """The end of the script on one rank.

    Attributes:
        rank: the rank.
        status: exit status: 0 for success, another number, or a message that Python prints.
        traceback: traceback of the script's error; empty if it completed.
        written: paths of the files that it opened for writing.
        observed: observations about its world.
        cannot_skip: why the rank has to run again without skipping repeats; empty if it has not.
        error: the error of a script that ran in this process; None if it completed or ran in another process.
    """

    rank: int
    status: int | str = 0
    traceback: str = ""
    written: tuple[str, ...] = ()
    observed: ObservedWorld = field(default_factory=ObservedWorld)
    cannot_skip: str = ""
    error: BaseException | None = None

    @classmethod
    def of(cls, rank: int, error: BaseException | None) -> ScriptEnd:
        """Return the end of a script on a rank, from its error; None if it completed."""
        is_silent = error is None or isinstance(error, SystemExit)
        text = "" if is_silent else "".join(traceback.format_exception(error))
        return cls(rank, status=exit_status(error), traceback=text)


def parse_ranks(ranks: str | Sequence[int], world_size: int) -> list[int]:
    """Return the sorted ranks that ``"0,8"``, ``"all"`` or a sequence of numbers names.

    Raises:
        UsageError: it names no rank, a rank twice, or a rank that is not in the world.
    """
    if ranks == "all":
        return list(range(world_size))
    if isinstance(ranks, str):
        words = [word.strip() for word in ranks.split(",")]
        if not all(word.isdecimal() for word in words):
            raise UsageError(f"ranks {ranks!r}: write them like 0,8, all or distinct")
        ranks = [int(word) for word in words]
    chosen = sorted(ranks)
    for rank in chosen:
        if not isinstance(rank, int) or not 0 <= rank < world_size:
            raise UsageError(
                f"rank {rank!r} is not in a world of {world_size} ranks: give ranks from 0 to {world_size - 1}"
            )
    if not chosen or len(set(chosen)) < len(chosen):
        raise UsageError(f"ranks {ranks!r}: name one rank or more, each once")
    return chosen


def run_as_ranks(program: Program, setting: Setting, ranks: Sequence[int]) -> tuple[Trace, list[ScriptEnd]]:
    """Run a program once per rank, as many at a time as there are processors, and merge the traces.

    Each line of output begins with its rank. Ctrl-C ends the ranks that are running; the traces of those that have
    ended are kept.

    Returns:
        the merged trace, and the end of the script on each rank that was not interrupted.

    Raises:
        UsageError: no such script, or sizes of the world that contradict each other.
        KeyboardInterrupt: it was interrupted before any rank had ended.
    """
    notes: list[str] = []
    with rank_processes(program, setting) as processes, track("running ranks", len(ranks), "ranks") as work:
        try:
            processes.run(ranks, work)
        except KeyboardInterrupt:
            if not processes.ends:
                raise
            notes.append(f"interrupted: {len(processes.ends)} of {len(ranks)} ranks are in this trace")
        trace = processes.merged(ranks)
    return finished(trace, setting, ends=processes.ends, notes=notes), processes.ends


def finished(trace: Trace, setting: Setting, *, ends: Sequence[ScriptEnd], notes: Sequence[str]) -> Trace:
    """Add notes before the trace's own, with one on files that several ranks wrote, and save it if that is asked for.

    Args:
        trace: the merged trace of the ranks.
        setting: their world, which says where to save the trace.
        ends: the end of the script on each rank.
        notes: further notes.
    """
    info = trace.tables.info
    notes = (*notes, *written_by_several([end.written for end in ends]), *info.notes)
    trace = Trace(replace(trace.tables, info=replace(info, notes=notes)))
    if setting.save is not None:
        trace.save(setting.save)
    return trace


class RankProcesses:
    """Runs a program as ranks of one world, each in a process of its own, and keeps their traces in a folder.

    Args:
        program: the program to run.
        setting: its world.
        folder: folder for the traces.
        together: number of ranks that run at a time.

    Attributes:
        ends: the end of the script on each rank that has ended.
        notes: notes on how the ranks were run.
    """

    def __init__(self, program: Program, setting: Setting, folder: str, together: int) -> None:
        self._program, self._setting, self.folder, self._together = program, setting, folder, together
        self.ends: list[ScriptEnd] = []
        self.notes: list[str] = []
        self._begun: list[int] = []

    def run(self, ranks: Sequence[int], work: Work, on_end: Callable[[int], None] = lambda _rank: None) -> None:
        """Run ranks; those that turn out unable to skip repeated layers run again in full.

        Args:
            ranks: the ranks to run.
            work: progress, which advances with each rank.
            on_end: called with each rank that has ended, while others run.
        """
        before = len(self.ends)
        reasons = self._run(ranks, work, on_end)
        if reasons:
            self._setting = replace(self._setting, skip_repeats=False)
            self._run(list(reasons), work, on_end)
            rank, reason = next(iter(reasons.items()))
            self.notes.append(f"from rank {rank} on, ranks ran all microbatches and layers: {reason}")
        self.ends[before:] = sorted(self.ends[before:], key=lambda end: ranks.index(end.rank))

    def _run(self, ranks: Sequence[int], work: Work, on_end: Callable[[int], None]) -> dict[int, str]:
        """Run ranks; return {rank: reason} for those that have to run again in full."""
        reasons: dict[int, str] = {}

        def note_end(outcome: RankOutcome[Any]) -> None:
            """Keep the end of a rank, or the reason why it has to run again."""
            rank = ranks[outcome.rank]
            shared_objects.end(self.folder, rank)
            if outcome.value is not None:
                end: ScriptEnd = outcome.value
            else:  # the process itself failed
                end = ScriptEnd(rank, status=1, traceback=outcome.traceback or outcome.error)
            if end.cannot_skip:
                reasons[rank] = end.cannot_skip
            else:
                self.ends.append(end)
                work.advance()
                on_end(rank)

        arguments = []
        for rank in ranks:
            arguments.append((self._program, self._setting, rank, SharedObjects(self.folder, tuple(self._begun))))
            self._begun.append(rank)
        run_in_turn(
            _run_in_this_process,
            arguments,
            together=self._together,
            on_line=partial(_print_line, ranks),
            on_end=note_end,
        )
        return reasons

    def tables(self, rank: int) -> Tables:
        """Load the tables that a rank recorded; empty ones if it recorded none."""
        file = Path(self.folder, rank_file(rank))
        return load(file).tables if file.exists() else Tables()

    def merged(self, ranks: Iterable[int]) -> Trace:
        """Merge the traces of these ranks; ranks without a trace are omitted."""
        files = [Path(self.folder, rank_file(rank)) for rank in ranks]
        traces = [load(file) for file in files if file.exists()]
        return Trace.merge(traces) if traces else Trace()


@contextmanager
def rank_processes(program: Program, setting: Setting) -> Iterator[RankProcesses]:
    """Yield the processes of a program's ranks, with a temporary folder.

    Raises:
        UsageError: there is no such script.
    """
    program.check()
    processors = len(os.sched_getaffinity(0))
    together = processors + 1 if setting.fake else processors  # one more, as a rank that starts or ends only waits
    with tempfile.TemporaryDirectory(prefix="dsexplore-ranks-") as folder:
        yield RankProcesses(program, setting, folder=folder, together=together)


def _print_line(ranks: Sequence[int], index: int, line: str) -> None:
    print(f"[rank {ranks[index]}] {line}", flush=True)


def _run_in_this_process(program: Program, setting: Setting, rank: int, objects: SharedObjects) -> ScriptEnd:
    """Run a rank in this process, which is its own, and save its trace in the folder of the shared objects."""
    folder = objects.folder
    written: dict[str, None] = {}
    setting = replace(setting, rank=rank, is_one_of_several=True, save=Path(folder, rank_file(rank)))
    # Ranks that begin later are run on demand for the objects that they send.
    objects = replace(objects, run_sender=partial(run_sender, program, setting, (rank,)))
    with watched_files(lambda path: written.setdefault(path), folder):
        run = run_as_rank(program, setting, stages=earlier_stages(program, setting, folder), objects=objects)
    if isinstance(run.error, CannotSkip):
        return ScriptEnd(rank, status=1, cannot_skip=str(run.error))
    return replace(ScriptEnd.of(rank, run.error), written=tuple(written), observed=run.observed)
