"""Run a program on N local ranks: real processes, real groups, with results and output back in the caller.

`run_ranks` starts every rank afresh and leaves none behind. When a rank fails, the others get a moment to find out and
are then ended; on a time-out or Ctrl-C all are ended, and the stack of each that hung is kept. (A wait inside gloo
cannot be interrupted, so ending the process is the only way out of one.) The ranks are forked from a small server
process that has imported torch already (`worlds.real.rank_server`): a run of four takes tenths of a second.
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

from dsexplore._internal.analysis.hangs.standing import Standing, odd_ones
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

Reason = Literal["done", "failed", "timeout"]
"""Why a run was over: all ranks had finished, one had failed, or the time had run out."""


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
        world_size: how many ranks.
        args: arguments of the function, the same on each rank.
        namespace: further names for source text.
        backend: of the process group that is ready when the program starts; None for no group. The environment
            variables of a launcher (``RANK``, ``MASTER_ADDR``, …) are set in any case.
        timeout: seconds for the whole run.
        group_timeout: seconds after which a collective of that group gives up.
        grace: seconds that the others get to end by themselves once a rank has failed.
        environment: variables to set in the ranks beside the caller's own.
        on_line: called with the rank and each line it prints, as it prints it.

    Returns:
        The outcome of each rank; ``.values`` is what they returned, and ``.check()`` raises if one failed.

    Raises:
        UsageError: fewer than one rank, or a program that cannot be sent to another process.

    Examples:
        >>> dsexplore.run_ranks(lambda: dist.get_rank() ** 2, 3).values
        [0, 1, 4]
    """
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give 1 or more")
    packed = pack_program(program, args, namespace)
    server()  # the first time it takes seconds, which are not the run's
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(rendezvous(world_size))
        run = _RanksRun()
        stack.callback(run.close)
        for rank in range(world_size):
            variables = {**launcher_variables, **(environment or {})}
            job = job_of_rank(packed, rank, world_size, variables, backend=backend, group_timeout=group_timeout)
            run.add(RankHandle(rank, job, on_line))
        return run.until_over(timeout, grace)


def run_in_turn(
    program: Callable[..., Any],
    arguments: Sequence[Sequence[Any]],
    *,
    together: int,
    on_line: Callable[[int, str], None] | None = None,
    on_end: Callable[[RankOutcome[Any]], None] = lambda _outcome: None,
) -> None:
    """Run a function once for each of several arguments, each time in a process of its own that is alone in its world.

    So many run at a time, and the next one starts as soon as one has ended. A process that fails leaves the others
    alone. On Ctrl-C those that run are ended, and no other starts.

    Args:
        program: called as ``program(*arguments[index])``.
        arguments: of each process.
        together: processes at a time.
        on_line: called with the index of a process and each line that it prints, as it prints it.
        on_end: called with the outcome of each process, whose ``rank`` is its index, once that has ended.

    Raises:
        UsageError: a program or arguments that cannot be sent to another process.
    """
    server()
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(rendezvous(1))
        run = _RanksRun()
        stack.callback(run.close)

        def start(index: int) -> RankHandle:
            job = job_of_rank(pack_program(program, arguments[index], None), 0, 1, launcher_variables)
            return RankHandle(index, job, on_line)

        run.in_turn(map(start, range(len(arguments))), together, on_end)


def job_of_rank(
    packed: bytes,
    rank: int,
    world_size: int,
    variables: Mapping[str, str],
    backend: str | None = None,
    group_timeout: float = 30.0,
    mesh: str = "",
) -> RankJob:
    """Return the job of a rank in the caller's environment, directory and path; arguments are fields of `RankJob`.

    Args:
        packed: the program; empty for a rank that runs cells.
        rank: number of the rank.
        world_size: number of ranks.
        variables: environment variables beside the caller's: those of `rendezvous`, and more.
        backend: see `RankJob`.
        group_timeout: likewise.
        mesh: likewise.
    """
    rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    return RankJob(
        rank=rank,
        world_size=world_size,
        program=packed,
        backend=backend,
        group_timeout=group_timeout,
        environment={**DEFAULTS, **os.environ, **rank_variables, **variables},
        directory=str(os.getcwd()),  # noqa: PTH109 - a string is what travels
        path=tuple(sys.path),
        mesh=mesh,
    )


DEFAULTS = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""Environment variables of ranks where the caller has set no others: ranks share the cores of one machine."""
ADDRESS = "127.0.0.1"


@contextmanager
def rendezvous(world_size: int) -> Iterator[dict[str, str]]:
    """Hold the store at which the ranks meet; yields the environment variables by which torch finds it.

    The system chooses the port, which is already open when the ranks start, so no other program can take it.
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
    """The outcomes of one run of a program on all ranks."""

    outcomes: tuple[RankOutcome[Value], ...]
    seconds: float
    reason: Reason
    first_failure: int | None = None
    """The rank that failed first; the others often fail because of it."""

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
        """Return this run, if every rank finished.

        Raises:
            RanksFailedError: a rank did not finish.
        """
        if not self.ok:
            raise RanksFailedError(self)
        return self


class RanksFailedError(Documented, RuntimeError):
    """A rank raised, died or hung; the message says which, with the traceback of the first that failed.

    Args:
        run: its outcomes, the error's attribute ``run``; None for the ranks of a simulated world.
        text: the message; made of the run's outcomes, a line for each rank, where there is none.
    """

    def __init__(self, run: RanksRun[object] | None, text: str = "") -> None:
        self.run = run
        super().__init__(text if run is None or text else self._text(run))

    @staticmethod
    def _text(run: RanksRun[object]) -> str:
        lines = [f"{len(run.outcomes)} local ranks: {_REASONS[run.reason]} after {run.seconds:.1f} s"]
        lines += [f"  rank {outcome.rank}: {_how(outcome)}" for outcome in run.outcomes]
        first = run.outcomes[run.first_failure if run.first_failure is not None else _first_odd(run)]
        details = first.traceback or first.stack
        lines += [f"rank {first.rank}:", details.rstrip()] if details else []
        return "\n".join(lines)


_REASONS: dict[Reason, str] = {"done": "ended", "failed": "one failed", "timeout": "time ran out"}


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _how(outcome: RankOutcome[object]) -> str:
    """Return how a rank ended: ``ok``, ``error: …``, ``stuck at train.py:12``, ``stopped (by SIGSTOP …)``."""
    if outcome.was_stopped:
        return STOPPED.removeprefix("was ")
    if outcome.status == "stuck" and outcome.stack:
        return f"stuck {Standing.of(outcome.stack).text}"
    return f"{outcome.status}{': ' if outcome.error else ''}{_first_line(outcome.error)}"


def _first_odd(run: RanksRun[object]) -> int:
    """Return the rank that the others wait for, by where they stand; else the first that has not finished."""
    unfinished = [outcome for outcome in run.outcomes if outcome.status != "ok"]
    stopped = [outcome.rank for outcome in unfinished if outcome.was_stopped]
    standing = {outcome.rank: Standing.of(outcome.stack) for outcome in unfinished if outcome.stack}
    return next(iter([*stopped, *odd_ones(standing), unfinished[0].rank]))


class _RanksRun:
    """The started ranks of one run, until the last has ended."""

    def __init__(self) -> None:
        self._ranks: list[RankHandle] = []
        self._began = time.monotonic()

    def add(self, rank: RankHandle) -> None:
        """Take over a rank that has just started."""
        self._ranks.append(rank)

    def until_over(self, timeout: float, grace: float) -> RanksRun[Any]:
        """Wait until all ranks have finished, the time is up, or ``grace`` seconds after a failure; end the rest."""
        with self._noting_stacks():
            first_failure = wait_for_all(self._ranks, self._began + timeout, grace)
        outcomes = self.close()
        reason: Reason = "timeout" if any(outcome.status == "stuck" for outcome in outcomes) else "done"
        if first_failure is not None:
            reason = "failed"
        return RanksRun(outcomes, time.monotonic() - self._began, reason, first_failure)

    def in_turn(self, ranks: Iterator[RankHandle], together: int, on_end: Callable[[RankOutcome[Any]], None]) -> None:
        """Wait until all ranks have ended; so many run at a time, and taking one from the iterator starts it."""
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
                    if rank.take(key.fd, time.monotonic()):
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
        """End all ranks, with the stacks of those that had not finished; safe to call again."""
        with uninterrupted():
            return self._close()

    def _close(self) -> tuple[RankOutcome[Any], ...]:
        ranks, self._ranks = self._ranks, []
        hung = [rank for rank in ranks if rank.status is None]
        running = [rank for rank in hung if not rank.look_whether_stopped()]  # a stopped one writes nothing
        for rank in running:
            rank.request_stack()
        until = time.monotonic() + STACK_WAIT
        for rank in running:
            rank.read_stack(until)
        for rank in hung:
            rank.signal(signal.SIGKILL)  # all of them before one fails because another is gone
        for rank in ranks:
            rank.release()
        return tuple(rank.end() for rank in ranks)
