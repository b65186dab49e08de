"""Play a script as several ranks of a simulated world, each in a process of its own, and merge their traces.

Each rank also returns what it observed of its world (`ObservedWorld`), from which `play_distinct` infers which ranks
differ.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import Work, track
from dsexplore._internal.torch_internals.process_groups import registered_groups
from dsexplore._internal.torch_internals.processes import NOT_PRELOADED
from dsexplore._internal.trace.files import rank_file
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace, load
from dsexplore._internal.user_code import is_user_file
from dsexplore._internal.worlds.real.run_ranks import RankOutcome, run_in_turn
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.scripts.play_rank import Setting, earlier_stages, play, play_sender
from dsexplore._internal.worlds.scripts.program import Program, exit_status
from dsexplore._internal.worlds.scripts.rank_axes import ObservedGroup, progressions
from dsexplore._internal.worlds.simulated import shared_objects
from dsexplore._internal.worlds.simulated.shared_objects import SharedObjects

_PRELOADED = ("torch.", "sympy.", "mpmath.", "networkx.", "dsexplore._internal.worlds.")
"""Beginnings of names of modules that are imported once for all ranks."""
_NO_RESULTS = ("/dev/", "/proc/")
_CACHES = ("/__pycache__/", "/.cache/", "/torchinductor_", "/.triton/")
_MAX_NAMED = 3
"""Maximal number of files that a note names."""


@dataclass(frozen=True)
class ObservedWorld:
    """Observations of one rank about its world, as plain data.

    Attributes:
        groups: the regular groups of two or more ranks that the rank is in.
        files: paths of the program's source files, the script first.
        modules: names of modules that torch and this package imported for this program.
    """

    groups: tuple[ObservedGroup, ...] = ()
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def observe_world(trace: Trace, main: object) -> ObservedWorld:
    """Describe the world that is open, after a program has run in it.

    Args:
        trace: the trace of the program.
        main: the program's ``__main__`` module.
    """
    script = getattr(main, "__file__", None)
    files = [str(script)] if script else []
    files += [file for file in _user_files() if file not in files]
    modules = sorted(name for name in sys.modules if name.startswith(_PRELOADED) and not name.startswith(NOT_PRELOADED))
    return ObservedWorld(tuple(_groups(trace)), tuple(files), tuple(modules))


def _groups(trace: Trace) -> Iterator[ObservedGroup]:
    """Yield the regular groups of two or more ranks that the played rank is in."""
    tables = trace.tables
    axes = dict(tables.groups.select("group", "axis").iter_rows())
    messages = set(trace.where(op=["send", "recv"]).events["group"])
    for group, ranks in list(registered_groups().items()):
        progression = progressions(list(ranks)) if dist.get_rank() in ranks else None
        if progression is not None:
            name = axes.get(group.group_name, "")
            if not name and group.group_desc.startswith("mesh_"):
                name = group.group_desc.removeprefix("mesh_").replace("default", "")
            yield ObservedGroup(name, progression, group.group_name in messages)


def _user_files() -> Iterator[str]:
    """Yield the source files of imported modules that belong to the program."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            yield file


@dataclass(frozen=True)
class ScriptEnd:
    """The end of the script on one rank.

    Attributes:
        rank: the rank.
        status: exit status as ``sys.exit`` takes it: 0 or None for success, a number, or a message.
        traceback: traceback of the script's error; empty if it completed.
        written: paths of the files that it opened for writing.
        observed: observations about its world.
        cannot_skip: why the rank has to be played again in full; empty if it has not.
        error: the error of a script that ran in this process; None if it completed or ran in another process.
    """

    rank: int
    status: Any = 0
    traceback: str = ""
    written: tuple[str, ...] = ()
    observed: ObservedWorld = field(default_factory=ObservedWorld)
    cannot_skip: str = ""
    error: BaseException | None = None

    @classmethod
    def of(cls, rank: int, error: BaseException | None) -> ScriptEnd:
        """Return the end of a script on a rank, from its error; None if it completed."""
        is_silent = error is None or isinstance(error, SystemExit)
        return cls(rank, exit_status(error), "" if is_silent else "".join(traceback.format_exception(error)))


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


def play_ranks(program: Program, setting: Setting, ranks: Sequence[int]) -> tuple[Trace, list[ScriptEnd]]:
    """Run a program once per rank, as many at a time as there are processors, and merge the traces.

    Each line of output begins with its rank. Ctrl-C ends the ranks that are running; the traces of those that have
    ended are kept.

    Returns:
        the merged trace, and the end of the script on each rank that was not interrupted.

    Raises:
        UsageError: no such script, or numbers that do not fit together.
        KeyboardInterrupt: it was interrupted before any rank had ended.
    """
    notes: list[str] = []
    with players(program, setting) as played, track("running ranks", len(ranks), "ranks") as work:
        try:
            played.play(ranks, work)
        except KeyboardInterrupt:
            if not played.ends:
                raise
            notes.append(f"interrupted: {len(played.ends)} of {len(ranks)} ranks are in this trace")
        trace = played.merged(ranks)
    return finished(trace, setting, [*notes, *written_by_several(played.ends)]), played.ends


def finished(trace: Trace, setting: Setting, notes: Sequence[str]) -> Trace:
    """Add notes before the trace's own, and save it if the setting asks for that."""
    info = trace.tables.info
    trace = Trace(replace(trace.tables, info=replace(info, notes=(*notes, *info.notes))))
    if setting.save is not None:
        trace.save(setting.save)
    return trace


class Players:
    """Plays ranks of one world, each in a process of its own, and keeps their traces in a folder.

    Args:
        program: the program to run.
        setting: its world.
        folder: folder for the ranks' traces, and for files that they share.
        together: number of ranks to play at the same time.

    Attributes:
        ends: the end of the program on each rank so far.
        notes: notes on ranks that could not skip repeated layers.
        folder: the folder.
    """

    def __init__(self, program: Program, setting: Setting, folder: str, together: int) -> None:
        self.ends: list[ScriptEnd] = []
        self.notes: list[str] = []
        self.folder = folder
        self._program, self._setting, self._together = program, setting, together
        self._begun: list[int] = []

    def play(self, ranks: Sequence[int], work: Work, then: Callable[[int], None] = lambda _rank: None) -> None:
        """Play ranks; those that turn out unable to skip repeated layers are played again in full.

        Args:
            ranks: the ranks to play.
            work: progress, which advances with each rank.
            then: called with each rank that has ended, while others are played.
        """
        before = len(self.ends)
        in_full = self._play(ranks, work, then)
        if in_full:
            self._setting = replace(self._setting, skips=False)
            self._play(list(in_full), work, then)
            rank, reason = next(iter(in_full.items()))
            self.notes.append(f"from rank {rank} on, ranks ran all microbatches and layers: {reason}")
        self.ends[before:] = sorted(self.ends[before:], key=lambda end: ranks.index(end.rank))

    def _play(self, ranks: Sequence[int], work: Work, then: Callable[[int], None]) -> dict[int, str]:
        """Play ranks; return {rank: reason} for those that have to be played again in full."""
        in_full: dict[int, str] = {}

        def ended(outcome: RankOutcome[Any]) -> None:
            rank = ranks[outcome.rank]
            shared_objects.end(self.folder, rank)
            if outcome.value is not None:
                end: ScriptEnd = outcome.value
            else:  # the process itself failed
                end = ScriptEnd(rank, 1, outcome.traceback or outcome.error)
            if end.cannot_skip:
                in_full[rank] = end.cannot_skip
            else:
                self.ends.append(end)
                work.advance()
                then(rank)

        arguments = []
        for rank in ranks:
            arguments.append((self._program, self._setting, rank, SharedObjects(self.folder, tuple(self._begun))))
            self._begun.append(rank)
        run_in_turn(
            _play_rank,
            arguments,
            together=self._together,
            on_line=partial(_print_line, ranks),
            on_end=ended,
        )
        return in_full

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
def players(program: Program, setting: Setting) -> Iterator[Players]:
    """Yield the players of a program's ranks, with a temporary folder.

    Raises:
        UsageError: there is no such script.
    """
    program.check()
    processors = len(os.sched_getaffinity(0))
    together = processors + 1 if setting.fake else processors  # one more, as a rank that starts or ends only waits
    with tempfile.TemporaryDirectory(prefix="dsexplore-ranks-") as folder:
        yield Players(program, setting, folder, together)


def _print_line(ranks: Sequence[int], index: int, line: str) -> None:
    print(f"[rank {ranks[index]}] {line}", flush=True)


def _play_rank(program: Program, setting: Setting, rank: int, objects: SharedObjects) -> ScriptEnd:
    """Play a rank in this process, which is its own, and save its trace in the folder of the shared objects."""
    folder = objects.folder
    written: dict[str, None] = {}
    worlds: list[ObservedWorld] = []  # gets one when the program has ended
    setting = replace(setting, rank=rank, is_one_of_several=True, save=Path(folder, rank_file(rank)))
    objects = replace(objects, player=partial(play_sender, program, setting, (rank,)))  # plays ranks that begin later
    with _watched_files(lambda path: written.setdefault(path), folder):
        played = play(
            program,
            setting,
            look=lambda trace: worlds.append(observe_world(trace, sys.modules["__main__"])),
            stages=earlier_stages(program, setting, folder),
            objects=objects,
        )
    error = played.error
    if isinstance(error, CannotSkip):
        return ScriptEnd(rank, 1, cannot_skip=str(error))
    end = ScriptEnd.of(rank, error)
    status = end.status if isinstance(end.status, int) else str(end.status)
    return replace(end, status=status, written=tuple(written), observed=worlds[0])


@contextmanager
def _watched_files(note: Callable[[str], Any], folder: str) -> Iterator[None]:
    """Report the files that the block opens for writing, through Python or ``torch.save``.

    Python has no way to remove an audit hook: it stays, without effect, until the process ends.

    Args:
        note: called with the absolute path of each file.
        folder: folder whose files are not reported.
    """
    watching = True

    def opened(path: object) -> None:
        if watching and isinstance(path, (str, os.PathLike)):
            name = str(Path(os.fspath(path)).absolute())
            is_result = not name.startswith((folder, *_NO_RESULTS)) and not any(cache in name for cache in _CACHES)
            if is_result and not Path(name).is_dir():  # a folder is opened for a temporary file without a name
                note(name)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watching:
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & os.O_ACCMODE
            if writes:
                opened(path)

    save = torch.save

    @wraps(save)  # a world of fake tensors patches the function that is wrapped
    def watched_save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        opened(f)  # torch writes the file in C++
        save(obj, f, *args, **kwargs)

    sys.addaudithook(audit)
    torch.save = watched_save
    try:
        yield
    finally:
        watching = False
        torch.save = save


def written_by_several(ends: Sequence[ScriptEnd]) -> list[str]:
    """Return a note on the files that several ranks opened for writing; empty if there are none."""
    counts = Counter(path for end in ends for path in end.written)
    shared = [path for path, count in counts.items() if count > 1]
    if not shared:
        return []
    named = ", ".join(os.path.relpath(path) for path in shared[:_MAX_NAMED])
    were = "was" if len(shared) == 1 else "were"
    more = f" and {len(shared) - _MAX_NAMED} more" if len(shared) > _MAX_NAMED else ""
    fewest, most = min(counts[path] for path in shared), max(counts.values())
    ranks = f"{most}" if fewest == most else f"{fewest} to {most}"
    return [
        f"each of the {len(ends)} ranks runs the whole script, so {named}{more} {were} opened for writing by "
        f"{ranks} of them, and the last one's content stays: write where the rank is 0"
    ]
