"""Wait for all ranks before they exchange their logs, and name the missing ranks with the states of their processes.

Each rank writes its host and process id into the world's store, so that other ranks can find out whether its process
is stopped, has ended, or is only slow. The store is queried in a separate thread, because it does not answer if the
process that serves it is stopped.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

import torch
import torch.distributed as td

from dsexplore._internal import launch_constants
from dsexplore._internal.capture.collectives.groups import describe_group
from dsexplore._internal.comm.logs.log_records import unlogged
from dsexplore._internal.torch_internals.process_groups import backend_of, default_store, timeout_of
from dsexplore._internal.units import format_ranks

_PREFIX = "dsexplore.comm/"
_STORE_SECONDS = 5.0
"""Seconds to wait for an answer of the store."""
Value = TypeVar("Value")


class _Registered:
    """The world in which this process has registered."""

    world: Any = None
    """Weak reference to its process group; None before the first."""


def store_of_world() -> Any:
    """Return the rendezvous store of the world; None if there is no world, or a simulated one."""
    if not (td.is_available() and td.is_initialized()):
        return None
    return None if describe_group(td.group.WORLD).timing == "none" else default_store()


def register() -> None:
    """Write this rank's host and process id into the world's store, once per world."""
    world = td.group.WORLD if td.is_available() and td.is_initialized() else None
    if world is None or (_Registered.world is not None and _Registered.world() is world):
        return
    store = store_of_world()
    if store is not None:
        _Registered.world = ref(world)
        store.set(f"{_PREFIX}process/{td.get_rank()}", f"{os.getpid()} {socket.gethostname()}")


def meet(call: str, timeout: timedelta | None = None, made: int | None = 0) -> bool:
    """Wait until every rank of the world has made a call.

    Args:
        call: name of the call in the error.
        timeout: how long to wait; None for the timeout of the world's collectives.
        made: number of collectives that this rank has made on the world; None if one of them failed.

    Returns:
        True if `made` is equal on all ranks. If it is not, another collective on the world would match an earlier one
        of another rank, or use connections that a failed one has broken.

    Raises:
        TimeoutError: some ranks have not made the call; the error names them.
    """
    store = store_of_world()
    if store is None:
        return True
    register()
    rank, size = td.get_rank(), td.get_world_size()
    timeout = timeout or _timeout_of_world()
    prefix = f"{_PREFIX}{store.add(f'{_PREFIX}meetings/{rank}', 1)}"
    arrivals = [f"{prefix}/here/{other}" for other in range(size)]
    count, distinct = f"{prefix}/count", f"{prefix}/distinct"
    store.set(arrivals[rank], str(made) if made is not None else f"failed on {rank}")
    if store.add(count, 1) == size:  # the last rank to arrive counts the different answers
        store.set(distinct, str(len(set(store.multi_get(arrivals)))))
    try:
        store.wait([distinct], timeout)
    except Exception as error:
        missing = [other for other, arrival in enumerate(arrivals) if not store.check([arrival])]
        if missing:
            raise _missing_error(call, missing, timeout) from error
        return bool(store.get(distinct) == b"1")
    is_same = bool(store.get(distinct) == b"1")
    _delete_once_read(store, [*arrivals, distinct, count])
    return is_same


def _missing_error(call: str, missing: Sequence[int], timeout: timedelta) -> TimeoutError:
    """Return the error that names the ranks that have not made a call, with the states of the first of them."""
    verb = "has" if len(missing) == 1 else "have"
    states = " ".join(state for rank in missing[:4] if (state := state_of(rank)))
    return TimeoutError(
        f"{call}: {format_ranks(missing)} of {td.get_world_size()} {verb} not made this call after"
        f" {timeout.total_seconds():g} s, and every rank of the world must. {states}".rstrip()
    )


def _delete_once_read(store: Any, keys: Sequence[str]) -> None:
    """Delete keys that every rank of the world reads; the last rank to read them deletes them."""
    readers = f"{keys[0]}/read"
    if store.add(readers, 1) == td.get_world_size():
        with suppress(RuntimeError, NotImplementedError):  # a store of another library may not delete keys
            for key in (*keys, readers):
                store.delete_key(key)


def _timeout_of_world() -> timedelta:
    """Return the timeout of the world's collectives; the default if its backend does not report one."""
    world: Any = td.group.WORLD
    device = torch.device("cuda" if "nccl" in td.get_backend() else "cpu")
    try:
        timeout = timeout_of(backend_of(world, device))
    except (RuntimeError, AttributeError):
        return launch_constants.default_pg_timeout
    return timeout if isinstance(timeout, timedelta) else launch_constants.default_pg_timeout


def state_of(rank: int) -> str:
    """Return a sentence on the state of another rank's process; empty if it is unknown."""
    process = _ask_in_time(lambda: _process_of(rank))
    if process is None:
        return ""
    pid, host = process
    if host != socket.gethostname():
        return f"Rank {rank} is process {pid} on {host}, which cannot be seen from {socket.gethostname()}."
    state = _process_state(pid)
    if state in ("T", "t"):
        return f"Rank {rank} (process {pid}) is stopped, as by SIGSTOP or Ctrl-Z: `kill -CONT {pid}` continues it."
    if state in ("", "Z", "X"):
        return f"Rank {rank} (process {pid}) has ended: look at its output."
    return f"Rank {rank} (process {pid}) runs, and is late or elsewhere in the program."


def stopped_or_ended(ranks: Sequence[int]) -> str:
    """Return a sentence for each of the ranks whose process is stopped or has ended."""
    states = [state_of(rank) for rank in ranks]
    return " ".join(state for state in states if " is stopped" in state or " has ended" in state)


def _process_of(rank: int) -> tuple[int, str] | None:
    """Return the process id and the host of a rank; None if it has not registered."""
    store, key = store_of_world(), f"{_PREFIX}process/{rank}"
    if store is None or not store.check([key]):
        return None
    pid, _, host = store.get(key).decode().partition(" ")
    return int(pid), host


def _process_state(pid: int) -> str:
    """Return the letter of a process's state on Linux; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _ask_in_time(ask: Callable[[], Value]) -> Value | None:
    """Return the value of `ask`; None if it takes longer than `_STORE_SECONDS`, or raises."""
    answers: list[Value] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_STORE_SECONDS)
    return answers[0] if answers else None


def exchange(value: Value, by_store: bool = False) -> dict[int, Value]:
    """Return {rank: its value} for the whole world. Every rank must make this call, after `meet`; it is not logged.

    Without a world, or in a simulated one, only this rank's value is returned.

    Args:
        value: value of this rank.
        by_store: exchange through the world's store instead of by a collective.
    """
    store = store_of_world()
    if store is None:
        return {td.get_rank() if td.is_available() and td.is_initialized() else 0: value}
    if by_store:
        rank = td.get_rank()
        values_at = f"{_PREFIX}exchange/{store.add(f'{_PREFIX}exchanges/{rank}', 1)}/"
        keys = [f"{values_at}{other}" for other in range(td.get_world_size())]
        store.set(keys[rank], pickle.dumps(value))
        by_rank = {other: pickle.loads(store.get(key)) for other, key in enumerate(keys)}
        _delete_once_read(store, keys)
        return by_rank
    values: list[Any] = [None] * td.get_world_size()
    with unlogged():
        td.all_gather_object(values, value)
    return dict(enumerate(values))
