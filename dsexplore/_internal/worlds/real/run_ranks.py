"""`run_ranks`: runs a program on N local ranks, in processes with real groups, and returns their results and output.

Each run starts new processes and ends them all. When a rank fails, the others have a short time to fail too, and are
then ended. On a time-out or Ctrl-C all are ended, and the stacks of those that hung are kept. (A wait inside gloo
cannot be interrupted, so the process has to be ended.) The ranks are forked from a small server process that has
already imported torch (`worlds.real.rank_server`), so a run on four ranks takes tenths of a second.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, Self, cast

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, though not in its stub

from dsexplore._internal.analysis.hangs.rank_places import RankPlace, ranks_elsewhere
from dsexplore._internal.errors import Documented, UsageError
from dsexplore._internal.interrupts import once_interrupted, uninterrupted
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.ends import STOPPED
from dsexplore._internal.units import format_count
from dsexplore._internal.user_warnings import warn_of_untested_torch
from dsexplore._internal.worlds.real.messages import RankJob
from dsexplore._internal.worlds.real.packed_program import pack_program
from dsexplore._internal.worlds.real.rank_handle import STACK_WAIT, RankHandle, wait_for_all
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome, Value
from dsexplore._internal.worlds.real.server_handle import server

__all__ = ["RankOutcome", "RanksFailedError", "RanksRun", "run_ranks"]

Reason = Literal["done", "failed", "interrupted", "timeout"]
"""Why a run ended: all ranks had finished, one had failed, Ctrl-C, or the time had run out."""


@names_arguments
def run_ranks(
    program: Callable[..., Value] | str,
    world_size: int,
    *,
    args: Sequence[object] = (),
    namespace: Mapping[str, object] | None = None,
    backend: str | None = "gloo",
    timeout: float = 60.0,
    group_timeout: float = 30.0,
    grace: float = 2.0,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[int, str], None] | None = None,
) -> RanksRun[Value]:
    """Run a program on local ranks and wait until all have ended.

    Args:
        program: a function, called as ``program(*args)`` on each rank (lambdas, closures and functions of a
            notebook included); or source text, executed as ``__main__`` with ``rank`` and ``world_size`` defined.
        world_size: number of ranks.
        args: arguments of the function, the same on each rank.
        namespace: further names for source text; None for none.
        backend: backend of the process group that is ready when the program starts; None for no group. The
            environment variables of a launcher (``RANK``, ``MASTER_ADDR``, …) are set in any case.
        timeout: seconds for the whole run.
        group_timeout: seconds after which a collective of that group fails.
        grace: seconds that the others have to end by themselves after a rank has failed.
        environment: environment variables of the ranks, in addition to the caller's; None for none.
        on_line: called with the rank and each line, while the program runs; None for no call.

    Returns:
        The outcome of each rank; ``.values`` are the results of the function, and ``.check()`` raises if a rank failed.

    Raises:
        UsageError: ``world_size`` is less than 1, or the program cannot be sent to another process.

    Examples:
        >>> dsexplore.run_ranks(lambda: dist.get_rank() ** 2, 3).values
        [0, 1, 4]
    """
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give 1 or more")
    packed = pack_program(program, args, namespace)
    server()  # its first start takes seconds, which do not count
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(rendezvous(world_size))
        running = _RunningRanks()
        stack.callback(running.close)
        for rank in range(world_size):
            variables = {**launcher_variables, **(environment or {})}
            job = job_of_rank(
                packed,
                rank=rank,
                world_size=world_size,
                variables=variables,
                backend=backend,
                group_timeout=group_timeout,
            )
            running.add(RankHandle(rank, job, on_line))
        return running.wait_until_over(timeout, grace)


def run_in_turn(
    program: Callable[..., Any],
    arguments: Sequence[Sequence[Any]],
    *,
    together: int,
    on_line: Callable[[int, str], None] | None = None,
    on_end: Callable[[RankOutcome[Any]], None] = lambda _outcome: None,
) -> None:
    """Run a function in several processes, each the only rank of its world, a few of them at a time.

    The next process starts when one has ended. A failure does not end the others. On Ctrl-C all are ended.

    Args:
        program: function, called as ``program(*arguments[index])``.
        arguments: arguments of the function in each process.
        together: number of processes that run at a time.
        on_line: called with the index of a process and each line that it prints, while it runs; None for no call.
        on_end: called with the outcome of each process when it has ended; the outcome's ``rank`` is the index.

    Raises:
        UsageError: the program or its arguments cannot be sent to another process.
    """
    server()
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(rendezvous(1))
        running = _RunningRanks()
        stack.callback(running.close)

        def start(index: int) -> RankHandle:
            packed = pack_program(program, arguments[index], namespace=None)
            job = job_of_rank(packed, rank=0, world_size=1, variables=launcher_variables)
            return RankHandle(index, job, on_line)

        running.run_in_turn(map(start, range(len(arguments))), together, on_end)


def job_of_rank(
    packed: bytes = b"",
    *,
    rank: int,
    world_size: int,
    variables: Mapping[str, str],
    backend: str | None = None,
    group_timeout: float = 30.0,
    mesh: str = "",
) -> RankJob:
    """Return the job of a rank, with the environment, directory and path of this process.

    Args:
        packed: pickled program, from `pack_program`; empty for a rank that runs cells.
        rank: number of the rank.
        world_size: number of ranks.
        variables: environment variables in addition to those of this process, with those of `rendezvous`.
        backend: backend of the process group; None for no group.
        group_timeout: seconds after which a collective of that group fails.
        mesh: axes of the mesh that cells find as ``mesh``; empty for none.
    """
    rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    return RankJob(
        rank=rank,
        world_size=world_size,
        program=packed,
        backend=backend,
        group_timeout=group_timeout,
        environment={**DEFAULTS, **os.environ, **rank_variables, **variables},
        directory=os.getcwd(),  # noqa: PTH109 - the job has a string
        path=tuple(sys.path),
        mesh=mesh,
    )


DEFAULTS = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""Defaults of environment variables for ranks, which share the cores of one machine."""
ADDRESS = "127.0.0.1"


@contextmanager
def rendezvous(world_size: int) -> Iterator[dict[str, str]]:
    """Open the store of a process group, and yield the environment variables by which ranks find it.

    The system chooses the port, which is open before the ranks start, so no other program can take it.
    """
    warn_of_untested_torch()
    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    yield {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    del store


@dataclass(frozen=True)
class RanksRun(Generic[Value]):
    """Outcomes of one run of a program on all ranks."""

    outcomes: tuple[RankOutcome[Value], ...]
    """Outcome of each rank, in order."""
    seconds: float
    """Duration of the run."""
    reason: Reason
    """Why the run ended."""
    first_failure: int | None = None
    """Rank that failed first, which often makes others fail; None if no rank failed."""

    def __repr__(self) -> str:
        finished = sum(outcome.status == "ok" for outcome in self.outcomes)
        return f"<RanksRun: {finished} of {format_count(len(self.outcomes), 'rank')} finished, {self.seconds:.1f} s>"

    @property
    def ok(self) -> bool:
        """True if every rank finished."""
        return all(outcome.status == "ok" for outcome in self.outcomes)

    @property
    def values(self) -> list[Value]:
        """Results of the ranks, in order.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        self.check()
        return [cast("Value", outcome.value) for outcome in self.outcomes]

    def check(self) -> Self:
        """Return this run if every rank finished.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        if not self.ok:
            raise RanksFailedError(self)
        return self


class RanksFailedError(Documented, RuntimeError):
    """A rank raised, died or hung; the message has a line for each rank, and the traceback of the first that failed.

    Args:
        run: the run, which is the error's attribute ``run``; None for the ranks of a simulated world.
        text: message; by default it is composed from the outcomes of the run.
    """

    def __init__(self, run: RanksRun[object] | None, text: str = "") -> None:
        self.run = run
        super().__init__(text if run is None or text else self._text(run))

    @staticmethod
    def _text(run: RanksRun[object]) -> str:
        lines = [f"{len(run.outcomes)} local ranks: {_REASONS[run.reason]} after {run.seconds:.1f} s"]
        lines += [f"  rank {outcome.rank}: {_how(outcome)}" for outcome in run.outcomes]
        first = run.outcomes[_awaited_rank(run) if run.first_failure is None else run.first_failure]
        details = first.traceback or first.stack
        lines += [f"rank {first.rank}:", details.rstrip()] if details else []
        return "\n".join(lines)


_REASONS: dict[Reason, str] = {
    "done": "ended",
    "failed": "one failed",
    "interrupted": "interrupted",
    "timeout": "time ran out",
}


def reason_of(first_failure: int | None, *, are_unfinished: bool, is_interrupted: bool = False) -> Reason:
    """Return why a run ended.

    Args:
        first_failure: rank that failed first; None if none failed.
        are_unfinished: True if ranks had not finished.
        is_interrupted: True if Ctrl-C ended the run.
    """
    if first_failure is not None:
        return "failed"
    if is_interrupted:
        return "interrupted"
    return "timeout" if are_unfinished else "done"


def _how(outcome: RankOutcome[object]) -> str:
    """Return how a rank ended: ``ok``, ``error: …``, ``stuck at train.py:12``, ``stopped (by SIGSTOP …)``."""
    if outcome.was_stopped:
        return STOPPED.removeprefix("was ")
    if outcome.status == "stuck" and outcome.stack:
        return f"stuck {RankPlace.of(outcome.stack).text}"
    if outcome.error:
        return f"{outcome.status}: {outcome.error.splitlines()[0]}"
    return outcome.status


def _awaited_rank(run: RanksRun[object]) -> int:
    """Return the rank that the others seem to wait for, by their stacks; else the first that has not finished."""
    unfinished = [outcome for outcome in run.outcomes if outcome.status != "ok"]
    stopped = [outcome.rank for outcome in unfinished if outcome.was_stopped]
    places = {outcome.rank: RankPlace.of(outcome.stack) for outcome in unfinished if outcome.stack}
    candidates = [*stopped, *ranks_elsewhere(places), unfinished[0].rank]
    return candidates[0]


class _RunningRanks:
    """The ranks of a run, which end with it."""

    def __init__(self) -> None:
        self._ranks: list[RankHandle] = []
        self._began = time.monotonic()

    def add(self, rank: RankHandle) -> None:
        """Add a rank that has just started; `close` ends it."""
        self._ranks.append(rank)

    def wait_until_over(self, timeout: float, grace: float) -> RanksRun[Any]:
        """Wait until all ranks have finished, or for ``timeout`` seconds, or ``grace`` seconds after a failure.

        All ranks are ended then.
        """
        with self._noting_stacks():
            first_failure = wait_for_all(self._ranks, deadline=self._began + timeout, grace=grace)
        outcomes = self.close()
        are_unfinished = any(outcome.status == "stuck" for outcome in outcomes)
        return RanksRun(
            outcomes=outcomes,
            seconds=time.monotonic() - self._began,
            reason=reason_of(first_failure, are_unfinished=are_unfinished),
            first_failure=first_failure,
        )

    def run_in_turn(
        self, ranks: Iterator[RankHandle], together: int, on_end: Callable[[RankOutcome[Any]], None]
    ) -> None:
        """Start ranks by taking them from an iterator, and wait until all have ended.

        Args:
            ranks: iterator that starts a rank when it is advanced.
            together: number of ranks that run at a time.
            on_end: called with the outcome of each rank.
        """
        with self._noting_stacks(), selectors.DefaultSelector() as selector:

            def start_next() -> None:
                for rank in islice(ranks, 1):
                    self.add(rank)
                    for descriptor in rank.descriptors:
                        selector.register(descriptor, selectors.EVENT_READ, rank)

            for _ in range(together):
                start_next()
            while self._ranks:
                for key, _ in selector.select():
                    rank: RankHandle = key.data
                    if rank.read_from(key.fd, time.monotonic()):
                        selector.unregister(key.fd)
                for rank in [rank for rank in self._ranks if rank.status is not None]:
                    with uninterrupted():
                        rank.release()
                        for descriptor in selector.get_map().keys() & set(rank.descriptors):
                            selector.unregister(descriptor)
                        start_next()
                        self._ranks.remove(rank)
                        outcome = rank.end()
                    on_end(outcome)

    @contextmanager
    def _noting_stacks(self) -> Iterator[None]:
        """End all ranks on Ctrl-C, and add the stacks of unfinished ones to the interrupt as notes."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            with once_interrupted():
                for outcome in self.close():
                    if outcome.status == "stuck":
                        interrupt.add_note(f"rank {outcome.rank} was at:\n{outcome.stack}")
            raise

    def close(self) -> tuple[RankOutcome[Any], ...]:
        """End all ranks, and return their outcomes, with the stacks of unfinished ones; a second call does nothing."""
        with uninterrupted():
            ranks, self._ranks = self._ranks, []
            hung = [rank for rank in ranks if rank.status is None]
            running = [rank for rank in hung if not rank.check_whether_stopped()]  # a stopped process writes no stack
            for rank in running:
                rank.request_stack()
            until = time.monotonic() + STACK_WAIT
            for rank in running:
                rank.read_stack(until)
            for rank in hung:
                rank.signal(signal.SIGKILL)  # all, before one of them fails because another has ended
            for rank in ranks:
                rank.release()
            return tuple(rank.end() for rank in ranks)
