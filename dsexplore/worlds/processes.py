"""Programs on N local ranks: real processes, real groups, results and output back in the caller.

`run_ranks` starts every rank afresh and leaves none behind: when a rank fails, its peers get a moment to find
out and are then ended; on a time-out or Ctrl-C all are ended, and the stack of each that hung is kept. (A wait
inside gloo cannot be interrupted, so ending the process is the only way out of one.) The ranks are forked from
a small server that holds torch imported, which makes a run of four a matter of tenths of a second.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dsexplore.errors import UsageError
from dsexplore.worlds.rank_client import close, server
from dsexplore.worlds.rank_outcomes import RankOutcome, RanksFailedError, RanksRun
from dsexplore.worlds.rank_run import Rank, Run
from dsexplore.worlds.rank_server import Job

__all__ = ["RankOutcome", "RanksFailedError", "RanksRun", "close", "run_ranks"]


def run_ranks(
    program: Callable[..., Any] | str,
    world_size: int,
    *,
    args: Sequence[Any] = (),
    namespace: Mapping[str, Any] | None = None,
    backend: str | None = "gloo",
    timeout: float = 60.0,
    group_timeout: float = 30.0,
    grace: float = 2.0,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[int, str], None] | None = None,
) -> RanksRun:
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

    Raises:
        UsageError: fewer than one rank, or a program that cannot be sent to another process.
    """
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give 1 or more")
    packed = _pack(program, args, namespace)
    server()  # the first time it takes seconds, which are not the run's
    with ExitStack() as stack:
        launcher_variables = stack.enter_context(_rendezvous(world_size))
        run = Run()
        stack.callback(run.close)
        for rank in range(world_size):
            variables = {**_DEFAULTS, **os.environ, **launcher_variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            job = Job(
                rank=rank,
                world_size=world_size,
                program=packed,
                backend=backend,
                group_timeout=group_timeout,
                environment={**variables, **(environment or {})},
                directory=str(os.getcwd()),  # noqa: PTH109 - a string is what travels
                path=tuple(sys.path),
            )
            run.add(Rank(rank, job, on_line))
        return run.until_over(timeout, grace)


_DEFAULTS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_ADDRESS = "127.0.0.1"


def _pack(program: Callable[..., Any] | str, args: Sequence[Any], namespace: Mapping[str, Any] | None) -> bytes:
    """The program as bytes; functions of test files and notebooks travel by value."""
    if isinstance(program, str) and not namespace:
        return pickle.dumps((program, {}))
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install cloudpickle, or give the program as source text without namespace"
        raise UsageError(f"functions and objects are sent to ranks with cloudpickle: {hint}") from error
    module = sys.modules.get(getattr(program, "__module__", "") or "")
    by_value = module is not None and module.__name__.partition(".")[0] != "dsexplore"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((program, dict(namespace or {}) if isinstance(program, str) else tuple(args)))
    except Exception as error:
        raise UsageError(f"the program cannot be sent to its ranks: {error}; pass plain data and functions") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return packed


@contextmanager
def _rendezvous(world_size: int) -> Iterator[dict[str, str]]:
    """Hold the store that the ranks meet at; yields the variables that lead torch to it.

    The port is the kernel's choice and already open when the ranks start, so no other program can take it.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, though not in its stub

    store = TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
    yield {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    del store
