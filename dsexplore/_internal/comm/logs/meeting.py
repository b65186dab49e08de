"""A meeting of all ranks before they exchange their logs; a missing rank is named, with the state of its process.

Each rank of a world writes its host and process id into the world's store, so that the others can see whether it is
stopped, has ended, or is only slow. The store is queried in a separate thread, because it does not answer if the
process that serves it is stopped too.
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
_PATIENCE = 5.0
"""Seconds to wait for the store's answer on a rank."""
Value = TypeVar("Value")


class _Registered:
    world: Any = None
    """A weak reference to the world in which this process has registered."""


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
        call: its name, for the error.
        timeout: how long to wait; None for the timeout of the world's collectives.
        made: number of collectives this rank has made on the world; None if one of them failed.

    Returns:
        True if `made` is equal on all ranks. If not, a further collective on the world would match an earlier one of
        another rank, or use connections that a failed one has broken.

    Raises:
        TimeoutError: some ranks have not; it names them.
    """
    store = store_of_world()
    if store is None:
        return True
    register()
    rank, size = td.get_rank(), td.get_world_size()
    patience = timeout or _timeout_of_world()
    number = store.add(f"{_PREFIX}meetings/{rank}", 1)
    here, all_here, count = (f"{_PREFIX}{number}/{name}" for name in ("here/", "all", "count"))
    marks = [f"{here}{other}" for other in range(size)]
    store.set(marks[rank], str(made) if made is not None else f"failed on {rank}")
    if store.add(count, 1) == size:
        store.set(all_here, str(len(set(store.multi_get(marks)))))
    try:
        store.wait([all_here], patience)
    except Exception as error:
        missing = [other for other, mark in enumerate(marks) if not store.check([mark])]
        if not missing:
            return bool(store.get(all_here) == b"1")
        verb = "has" if len(missing) == 1 else "have"
        states = " ".join(state for other in missing[:4] if (state := state_of(other)))
        raise TimeoutError(
            f"{call}: {format_ranks(missing)} of {size} {verb} not made this call after {patience.total_seconds():g} s,"
            f" and every rank of the world must. {states}".rstrip()
        ) from error
    same = bool(store.get(all_here) == b"1")
    _delete_once_read(store, [*marks, all_here, count])
    return same


def _delete_once_read(store: Any, keys: Sequence[str]) -> None:
    """Delete keys that every rank of the world reads; the last rank to read them deletes them."""
    readers = f"{keys[0]}/read"
    if store.add(readers, 1) == td.get_world_size():
        with suppress(RuntimeError, NotImplementedError):  # torch's stores can delete, those of others need not
            for key in (*keys, readers):
                store.delete_key(key)


def _timeout_of_world() -> timedelta:
    world: Any = td.group.WORLD
    device = torch.device("cuda" if "nccl" in td.get_backend() else "cpu")
    try:
        timeout = timeout_of(backend_of(world, device))
    except (RuntimeError, AttributeError):
        return launch_constants.default_pg_timeout
    return timeout if isinstance(timeout, timedelta) else launch_constants.default_pg_timeout


def state_of(rank: int) -> str:
    """Return a sentence on the state of another rank's process; empty if nothing is known of it."""
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
    """Return a sentence for each rank with a stopped or ended process."""
    states = [state_of(rank) for rank in ranks]
    return " ".join(state for state in states if " is stopped" in state or " has ended" in state)


def _process_of(rank: int) -> tuple[int, str] | None:
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
    """Return the value of `ask`; None if it takes longer than `_PATIENCE`, or raises."""
    answers: list[Value] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answers[0] if answers else None


def exchange(value: Value, by_store: bool = False) -> dict[int, Value]:
    """Return {rank: its value} for the whole world; every rank must make this call, after `meet`. It is not logged.

    Without a world, or in a simulated one, it has this rank's value alone.

    Args:
        value: this rank's.
        by_store: exchange through the world's store, which one rank serves, instead of by a collective.
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
