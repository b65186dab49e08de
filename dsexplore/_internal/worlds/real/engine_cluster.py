"""`EngineCluster`: ranks on the engines of an ipyparallel cluster that the user has started, for a notebook's cells.

A site starts its engines like any job: with Slurm, MPI, or ``torchrun … -m ipyparallel.engine``. Each engine has the
rank of its launcher (``RANK``), not the number that ipyparallel gives it. The engines belong to the user, so they are
interrupted but never killed; an engine that waits inside gloo or NCCL is reported as busy.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_ranks
from dsexplore._internal.worlds.real.cell_end import CellRun, interruptible, merge_cell
from dsexplore._internal.worlds.real.engine_process import EngineCell
from dsexplore._internal.worlds.real.messages import Cell, CellReport
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome, unpacked
from dsexplore._internal.worlds.real.rank_world import GRACE, OnOutput, group_options
from dsexplore._internal.worlds.real.run_ranks import reason_of
from dsexplore._internal.worlds.world_settings import resolve

POLL_INTERVAL = 0.02
"""Seconds between two checks of the engines."""
DESCRIBE_WAIT = 60.0
"""Seconds that engines have for their first answer."""
ANSWER_WAIT = 2.0
"""Seconds that engines have to answer if they may have ended."""
LOAD_WAIT = 300.0
"""Seconds that engines have to import torch and dsexplore, once."""
OUTPUT_WAIT = 1.0
"""Seconds to wait for an engine's output, which has its own channel and may arrive after the answer."""
INTERRUPT_WAIT = 1.0
"""Seconds that interrupted engines have to leave a cell."""

_CALLED_OFF = "KeyboardInterrupt: the cell had not begun here"


class _Description(NamedTuple):
    """Answer of an engine to `_describe`."""

    rank: int
    world_size: int
    host: str
    pid: int


def _describe() -> tuple[int, int, str, int]:  # plain values, as the engine does not know `_Description`
    """Return the fields of an engine's `_Description`; rank and world size are −1 if no launcher set them."""
    import os  # it runs on the engine, where this module is not imported
    import socket

    rank, size = (int(os.environ.get(name, "-1")) for name in ("RANK", "WORLD_SIZE"))
    return rank, size, socket.gethostname(), os.getpid()


def _load() -> None:
    import dsexplore._internal.worlds.real.engine_process  # noqa: F401 - it runs on the engine, and takes seconds


def _run(data: bytes) -> Any:
    from dsexplore._internal.worlds.real.engine_process import run_packed  # it runs on the engine

    return run_packed(data)


@dataclass
class _Output:
    """Output of an engine, with the attribute that a local rank's `Pipe` has."""

    text: str = ""


class EngineRank:
    """A rank on an engine.

    Args:
        rank: number of the rank.
        engine: ipyparallel's number of the engine.
    """

    def __init__(self, rank: int, engine: int) -> None:
        self.rank, self.engine = rank, engine
        self.output = _Output()
        self.answer: Any = None
        """The ipyparallel result of the running cell."""

    def outcome(self) -> tuple[RankOutcome[Any], bytes]:
        """Return the outcome of the cell, and its pickled trace."""
        from ipyparallel.error import TaskAborted  # an optional package, which an open cluster has imported

        self.update_output()
        if not self.answer.ready():
            return RankOutcome(self.rank, "stuck", output=self.output.text), b""
        try:
            report = pickle.loads(self.answer.get(timeout=0))
        except Exception as error:  # the engine has ended, or cannot run the cell
            if isinstance(error, TaskAborted):
                return RankOutcome(self.rank, "error", error=_CALLED_OFF, output=self.output.text), b""
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            return RankOutcome(self.rank, "died", error=text, output=self.output.text), b""
        assert isinstance(report, CellReport)
        self.answer.wait_for_output(OUTPUT_WAIT)
        self.update_output()
        outcome = RankOutcome(
            self.rank,
            "ok" if report.ok else "error",
            value=unpacked(report),
            error=report.error,
            traceback=report.traceback,
            output=self.output.text,
            line=report.line,
            shown=report.shown,
        )
        return outcome, report.trace

    def update_output(self) -> None:
        """Update the output of the engine."""
        self.output.text = f"{self.answer.stdout}{self.answer.stderr}"

    @property
    def has_failed(self) -> bool:
        """True if the cell has ended on this rank with an error."""
        return bool(self.answer.ready()) and self.outcome()[0].status != "ok"


class EngineCluster:
    """Ranks on engines, which keep their state between cells.

    Args:
        profile: ipyparallel's name of the cluster, or the path of its profile folder.
        backend: backend of the process group, for engines that have no group yet.
        mesh: axes of the mesh that cells find as ``mesh``, ``"dp=2,tp=2"``; empty for none.
    """

    def __init__(self, profile: str, backend: str = "gloo", mesh: str = "") -> None:
        self.profile, self.backend, self.mesh = profile, backend, mesh
        self.size = 0
        self.is_open = False
        self._client: Any = None
        self._ranks: list[EngineRank] = []
        self._described: dict[int, _Description] = {}
        """Descriptions of the engines that have answered."""
        self._seen: set[int] = set()
        """Engines of the cluster when ranks were last assigned."""

    def __str__(self) -> str:
        return f"{self.size} engines of {self.profile}"

    @property
    def options(self) -> str:
        """Options of the magic that connect to it."""
        return f"--profile {self.profile}{group_options(self.backend, self.mesh)}"

    def open(self) -> None:
        """Connect to the cluster, and ask each engine for its rank.

        Raises:
            UsageError: ipyparallel is missing, there is no such cluster, or its engines are not the ranks of one world.
        """
        try:
            import ipyparallel
        except ImportError as error:
            raise UsageError("--profile needs ipyparallel: pip install 'dsexplore[ranks]'") from error
        where = "profile_dir" if Path(self.profile).is_dir() else "profile"
        try:
            self._client = ipyparallel.Client(**{where: self.profile})
            self._find_ranks()
        except UsageError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise UsageError(
                f"no cluster answers under the profile {self.profile!r} ({type(error).__name__}: {error}): start its "
                "controller and engines first, as docs/cluster.md says"
            ) from error
        self.is_open = True

    def _find_ranks(self) -> None:
        """Assign an engine to each rank; of several engines of one rank, the newest, if the others have ended.

        Raises:
            UsageError: an engine has no rank, two engines have the same rank, or a rank has no engine.
        """
        engines = list(self._client.ids)
        if not engines:
            raise UsageError(f"the cluster {self.profile!r} has no engines: start them as docs/cluster.md says")
        known = {engine: self._described[engine] for engine in engines if engine in self._described}
        described = known | self._ask([engine for engine in engines if engine not in known], DESCRIBE_WAIT)
        if not described:
            raise UsageError(
                f"none of the {len(engines)} engines of {self.profile!r} answers within {DESCRIBE_WAIT:.0f} s: start "
                "their job again"
            )
        by_rank: dict[int, list[int]] = {}
        for engine, description in sorted(described.items()):
            if description.rank < 0:
                raise UsageError(
                    f"engine {engine} (process {description.pid} on {description.host}) has no RANK: start engines "
                    "with torchrun, srun or mpirun, as docs/cluster.md says"
                )
            by_rank.setdefault(description.rank, []).append(engine)
        self._check_older(by_rank, known)
        self.size = described[max(described)].world_size
        missing = sorted(set(range(self.size)) - by_rank.keys())
        if missing:
            raise UsageError(f"no engine for {format_ranks(missing)} of {self.size}: start the engines' job again")
        resolve(world_size=self.size, mesh=self.mesh or None, rank=0)
        before = {rank.engine: rank for rank in self._ranks}
        newest = {rank: engines_of_rank[-1] for rank, engines_of_rank in by_rank.items()}
        ranks = [before.get(newest[rank]) or EngineRank(rank, newest[rank]) for rank in range(self.size)]
        loading = [self._start(rank, _load) for rank in ranks if rank.engine not in before]
        for answer in loading:
            answer.get(timeout=LOAD_WAIT)
        self._ranks, self._described, self._seen = ranks, described, set(engines)

    def _check_older(self, by_rank: Mapping[int, Sequence[int]], described: Mapping[int, _Description]) -> None:
        """Check that only the newest engine of each rank runs; the controller notices late that engines have ended.

        Args:
            by_rank: engines of each rank, the newest last.
            described: engines that were known before, which may have ended.

        Raises:
            UsageError: an older engine still runs.
        """
        older = {engine: engines[-1] for engines in by_rank.values() for engine in engines[:-1]}
        alive = self._ask([engine for engine in older if engine in described], ANSWER_WAIT)
        for engine, newest in older.items():
            if engine in alive or engine not in described:
                rank = next(number for number, engines in by_rank.items() if engine in engines)
                raise UsageError(f"engines {engine} and {newest} are both rank {rank}: stop the older one")

    def _ask(self, engines: Sequence[int], seconds: float) -> dict[int, _Description]:
        """Return the descriptions of the engines that answer in time.

        Once all ranks of a world have answered, the others have `ANSWER_WAIT` seconds, as they have probably ended.
        """
        asked = {}
        for engine in engines:
            with suppress(IndexError):  # it has ended since the list was read
                asked[engine] = self._client[engine].apply_async(_describe)
        answers: dict[int, _Description] = {}
        until = time.monotonic() + seconds
        is_whole = False
        while asked and time.monotonic() < until:
            for engine in [engine for engine, answer in asked.items() if answer.ready()]:
                answer = asked.pop(engine)
                if answer.successful():
                    answers[engine] = _Description(*answer.get(timeout=0))
            if answers and not is_whole:
                ranks = {description.rank for description in answers.values()}
                is_whole = len(ranks) == next(iter(answers.values())).world_size
                if is_whole:
                    until = min(until, time.monotonic() + ANSWER_WAIT)
            time.sleep(POLL_INTERVAL)
        return answers

    def close(self) -> None:
        """Close the connection; the engines keep running, with their state."""
        self.is_open = False
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def run(
        self,
        cell: Cell,
        *,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
        on_output: OnOutput = lambda ranks: None,
    ) -> CellRun:
        """Run a cell on the engines, and wait until it has ended on all of them, or has failed on one.

        Args:
            cell: the cell.
            ranks: ranks that run it; None for all.
            timeout: seconds for the cell.
            on_output: called with the ranks when one has printed something.

        Raises:
            UsageError: an engine has ended, or still runs an earlier cell.
            KeyboardInterrupt: Ctrl-C; the engines were interrupted, and the interrupt's ``run`` is the `CellRun`.
        """
        self._check_engines()
        chosen = [self._ranks[rank] for rank in (range(self.size) if ranks is None else ranks)]
        data = pickle.dumps(EngineCell(cell, self.backend, self.mesh))
        began = time.monotonic()
        try:
            for rank in chosen:
                rank.answer = self._start(rank, _run, data)
        except UsageError:
            self._interrupt([rank for rank in chosen if rank.answer is not None and not rank.answer.ready()])
            raise

        def finish(first_failure: int | None, is_interrupted: bool) -> CellRun:
            self._interrupt([rank for rank in chosen if not rank.answer.ready()])
            return self._collect(chosen, began=began, first_failure=first_failure, is_interrupted=is_interrupted)

        return interruptible(lambda: self._wait(chosen, began + timeout, on_output), finish)

    def _start(self, rank: EngineRank, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on an engine without waiting for it, and return ipyparallel's result object.

        Raises:
            UsageError: the engine has ended.
        """
        try:
            return self._client[rank.engine].apply_async(function, *args)
        except IndexError:
            raise UsageError(f"no engine for rank {rank.rank} of {self.size}: start the engines' job again") from None

    def _check_engines(self) -> None:
        """Assign engines to ranks again if the cluster has other engines than before.

        Raises:
            UsageError: a rank has no engine, or still runs an earlier cell.
        """
        if set(self._client.ids) != self._seen:
            self._find_ranks()
        waiting = [rank.rank for rank in self._ranks if rank.answer is not None and not rank.answer.ready()]
        if waiting:
            raise UsageError(
                f"an earlier cell still runs on {format_ranks(waiting)}, perhaps waiting inside a collective, "
                "which no interrupt ends: restart the engines' job"
            )

    def _wait(self, chosen: Sequence[EngineRank], deadline: float, on_output: OnOutput) -> int | None:
        """Wait until the cell has ended on all ranks, until the deadline, or `GRACE` seconds after a failure.

        Returns:
            Rank that failed; the first one if several have. None if none has.
        """
        while not all(rank.answer.ready() for rank in chosen):
            for rank in chosen:
                rank.answer.wait(POLL_INTERVAL / len(chosen))
                rank.update_output()
            on_output(chosen)
            now = time.monotonic()
            if any(rank.has_failed for rank in chosen):
                deadline = min(deadline, now + GRACE)
            if now >= deadline:
                break
        return next((rank.rank for rank in chosen if rank.has_failed), None)

    def _interrupt(self, running: Sequence[EngineRank]) -> None:
        """Send SIGINT to engines that still run the cell, as ipyparallel does not forward Ctrl-C.

        An engine that has not begun the cell would miss the signal, so the cell is removed from its queue.
        """
        if not running:
            return
        engines = [rank.engine for rank in running]
        with suppress(TimeoutError):
            self._client.abort([rank.answer for rank in running], engines, block=False).result(INTERRUPT_WAIT)
        self._client.send_signal(signal.SIGINT, targets=engines, block=False)
        until = time.monotonic() + INTERRUPT_WAIT
        while time.monotonic() < until and not all(rank.answer.ready() for rank in running):
            running[0].answer.wait(POLL_INTERVAL)

    def _collect(
        self, chosen: Sequence[EngineRank], *, began: float, first_failure: int | None, is_interrupted: bool
    ) -> CellRun:
        """Return the outcomes and the merged trace of a cell.

        Args:
            chosen: ranks that ran it.
            began: time at which it was sent, by the monotonic clock.
            first_failure: rank that failed first; None if none failed.
            is_interrupted: True if Ctrl-C ended the cell.
        """
        outcomes, recorded = [], []
        for rank in chosen:
            outcome, trace = rank.outcome()
            outcomes.append(outcome)
            if trace:
                recorded.append(pickle.loads(trace).tables)
        tables = merge_cell(recorded, [rank.rank for rank in chosen])
        are_unfinished = any(outcome.status == "stuck" for outcome in outcomes)
        return CellRun(
            outcomes=tuple(outcomes),
            seconds=time.monotonic() - began,
            reason=reason_of(first_failure, are_unfinished=are_unfinished, is_interrupted=is_interrupted),
            first_failure=first_failure,
            trace=None if tables is None else Trace(tables),
        )
