"""The calls by which a program sets up its process groups: in a simulated world they hand out that world, or refuse.

A training script calls ``init_process_group``, makes meshes and groups, and ends with ``destroy_process_group``. In a
simulated world the first returns at once; meshes over all ranks are made of simulated groups, on the CPU where the
device that they ask for is missing; a group is simulated whatever backend it asks for, and ``get_backend`` returns the
one that was asked for; and the last leaves the groups to whoever opened the world. Another size is one clear error.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.dtensor import INIT_DEVICE_MESH
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import (
    DESTROY_GROUPS,
    GET_BACKEND,
    INIT_GROUPS,
    INIT_RPC,
    IS_INITIALIZED,
    NEW_GROUP,
)
from dsexplore._internal.worlds.cuda.first_use import FirstUse
from dsexplore._internal.worlds.fake.fake_workarounds import outside_fake_mode
from dsexplore._internal.worlds.simulated.closed import WorldObjects
from dsexplore._internal.worlds.world_settings import WorldSettings

_GET_SIMULATED_BACKEND = (
    "dsexplore._internal.capture",
    "dsexplore._internal.comm.logs.log_records",
    "dsexplore._internal.trace",
    "torch.distributed.device_mesh",
    "torch.distributed.distributed_c10d",
)
"""Modules that get the backend as it is: those that record a group, and those of torch that run it."""

_ALWAYS_HAVE_A_GROUP = ("dsexplore.", "torch.distributed.distributed_c10d")


class SetUpCalls:
    """The process groups of a world as its program set them up.

    Args:
        settings: of the world, all of them resolved.

    Attributes:
        initialize: torch's ``init_process_group``.
        destroy: torch's ``destroy_process_group``.
        was_initialized: whether the program has called ``init_process_group``, or torch for it.
    """

    initialize: Callable[..., None]
    destroy: Callable[..., None]

    def __init__(self, settings: WorldSettings) -> None:
        self.size, self.rank, self.world = settings.size, settings.rank, str(settings)
        self._target_backend = settings.backend
        self._shown_backend = settings.backend if settings.hardware is not None else "fake"
        self._backends: dict[str, str] = {}  # by the name of a group: what was asked for
        self.is_strict = self.is_set_up = self.was_initialized = False

    def expect_set_up(self) -> None:
        """Hide the process group until the program initializes it, which it may do once, as under torchrun."""
        self.is_strict, self.is_set_up, self.was_initialized = True, False, False

    def answer_as_cuda(self) -> None:
        """Answer "nccl" where the program chose no backend: it uses ``cuda``."""
        self._shown_backend = "nccl"

    def set_up(self, backend: str | None) -> None:
        """Note that the program has initialized its groups, with that backend.

        Raises:
            UsageError: it has done so before.
        """
        if self.is_strict and self.is_set_up:
            raise UsageError(
                "init_process_group is called a second time, which torch refuses on a cluster too: call it once, or "
                "ask torch.distributed.is_initialized() before"
            )
        self.is_set_up = self.was_initialized = True
        self.choose_backend(None, backend)

    def choose_backend(self, group: dist.ProcessGroup | None, backend: Any) -> None:
        """Note the backend that the program asked for; None for none."""
        if backend is not None:
            self._backends[_name(group)] = str(backend).lower()

    def chosen_backend(self, group: dist.ProcessGroup | None) -> str | None:
        """Return the lower-case backend that the program chose for a group, else for the world; None for neither."""
        return self._backends.get(_name(group)) or self._backends.get("")

    def backend_of(self, group: dist.ProcessGroup | None) -> str:
        """Return the backend that a group would have on a real cluster: the one chosen, or else the target's."""
        return self.chosen_backend(group) or self._target_backend

    def shown_backend(self, group: dist.ProcessGroup | None) -> str:
        """Return the result of ``get_backend``: the one that the program chose, else that of the hardware or "fake"."""
        return self.chosen_backend(group) or self._shown_backend


def _name(group: dist.ProcessGroup | None) -> str:
    """Return the name of a group; empty for the one of all ranks."""
    return "" if group is None or group is dist.group.WORLD else str(group.group_name)


def _init_process_group(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    calls = parts[SetUpCalls]
    calls.initialize = original

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        from_launcher = init_method in (None, "env://")
        if world_size in (-1, None) and from_launcher:
            world_size = int(os.environ.get("WORLD_SIZE", -1))
        if world_size not in (-1, None, calls.size):
            raise UsageError(
                f"init_process_group asks for {world_size} ranks, but a simulated world of {calls.world} is open: "
                f"open one of {world_size} ranks, or leave world_size out to use this one"
            )
        if rank not in (-1, None, calls.rank):
            raise UsageError(
                f"init_process_group asks to be rank {rank}, but this process plays rank {calls.rank} of "
                f"{calls.world}: open the world with rank {rank} (--rank {rank}), or take the rank from the "
                "environment variable RANK"
            )
        calls.set_up(backend)

    return init_process_group


def _destroy_process_group(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    calls = parts[SetUpCalls]
    calls.destroy = original

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            original(group)
        else:
            calls.is_set_up = False

    return destroy_process_group


def _get_backend(original: Callable[..., str], parts: Parts) -> Callable[..., str]:
    calls, watch = parts[SetUpCalls], parts[WorldObjects]

    def get_backend(group: dist.ProcessGroup | None = None) -> str:
        if group is not None:
            watch.check_group(group)
        backend = original(group)
        if backend != "fake" or _caller().startswith(_GET_SIMULATED_BACKEND):
            return backend
        return dist.Backend(calls.shown_backend(group))

    return get_backend


def _is_initialized(original: Callable[[], bool], parts: Parts) -> Callable[[], bool]:
    calls = parts[SetUpCalls]

    def is_initialized() -> bool:
        is_hidden = calls.is_strict and not calls.is_set_up and not _caller().startswith(_ALWAYS_HAVE_A_GROUP)
        return original() and not is_hidden

    return is_initialized


def _init_device_mesh(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    calls, make, use = parts[SetUpCalls], outside_fake_mode(original), parts[FirstUse]

    def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        shape = tuple(mesh_shape)
        if device_type == "cuda":
            use.happens()
        if math.prod(shape) > calls.size:
            raise UsageError(
                f"init_device_mesh asks for {'×'.join(map(str, shape))} = {math.prod(shape)} ranks, but the "
                f"simulated world has {calls.world}: make the product {calls.size}, or open another world"
            )
        return make(device_type if _is_available(device_type) else "cpu", shape, *args, **kwargs)

    return init_device_mesh


def _new_group(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    calls, parameters = parts[SetUpCalls], signature(original)
    names = tuple(parameters.parameters)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        if args:
            parameters.bind(*args, **kwargs)  # raises what the call would raise
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        group = original(**{**arguments, "backend": None, "pg_options": None})
        if isinstance(group, dist.ProcessGroup):
            calls.choose_backend(group, arguments.get("backend"))
        return group

    return new_group


def _refuse_rpc(original: Any, parts: Parts) -> Any:
    def init_rpc(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            "RPC is not recorded: it calls functions of other processes, and a simulated world has one. Trace the part "
            "of the program that uses collectives, without torch.distributed.rpc.init_rpc"
        )

    return init_rpc


def _caller() -> str:
    """Return the module that called the caller of this function, past the trampoline of `Patches.function`."""
    return str(sys._getframe(3).f_globals.get("__name__", ""))


def _is_available(device_type: str) -> bool:
    module: Any = getattr(torch, str(device_type), None)
    return not hasattr(module, "is_available") or bool(module.is_available())


PATCHES: tuple[Entry, ...] = (
    Patch(INIT_GROUPS, "the group is there already", _init_process_group, by_code=True),
    Patch(DESTROY_GROUPS, "the world goes on to the end of its block", _destroy_process_group, by_code=True),
    Patch(NEW_GROUP, "no other backend is there", _new_group, by_code=True),
    Patch(GET_BACKEND, "programs go another way for each backend", _get_backend, by_code=True),
    Patch(IS_INITIALIZED, "under torchrun nothing is initialized at first", _is_initialized, by_code=True),
    Patch(INIT_RPC, "it waits for processes that are not there", _refuse_rpc, on_import=True),
    Patch(INIT_DEVICE_MESH, "its device may not be there", _init_device_mesh, by_code=True),
)
