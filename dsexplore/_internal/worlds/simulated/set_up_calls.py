"""`SetUpCalls`: the calls by which a program sets up its process groups, in a simulated world.

``init_process_group`` returns at once, or raises an error if it asks for another size or rank. Meshes consist of
simulated groups, on the CPU if their device is missing. Groups are simulated with any backend, and ``get_backend``
returns the backend that the program asked for. ``destroy_process_group`` leaves the groups of the world open.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.dtensor import INIT_DEVICE_MESH
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import (
    DESTROY_GROUPS,
    GET_BACKEND,
    INIT_GROUPS,
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
"""Modules for which ``get_backend`` returns the real backend, "fake": they record a group, or run its collectives."""

_ALWAYS_HAVE_A_GROUP = ("dsexplore.", "torch.distributed.distributed_c10d")
"""Modules for which ``is_initialized`` returns True before the program has initialized the group."""


class SetUpCalls:
    """The process groups of a world as its program set them up.

    Args:
        settings: settings of the world, without open defaults.

    Attributes:
        initialize: torch's ``init_process_group``.
        destroy: torch's ``destroy_process_group``.
        is_strict: whether the process group is hidden until the program initializes it.
        is_set_up: whether the program has initialized the group, and not destroyed it.
        was_initialized: whether the program, or torch for it, has ever initialized the group.
    """

    initialize: Callable[..., None]
    destroy: Callable[..., None]

    def __init__(self, settings: WorldSettings) -> None:
        self.size, self.rank, self.world = settings.size, settings.rank, str(settings)
        self._target_backend = settings.backend
        self._shown_backend = settings.backend if settings.hardware is not None else "fake"
        self._backends: dict[str, str] = {}  # chosen backends, by the name of the group
        self.is_strict = self.is_set_up = self.was_initialized = False

    def expect_set_up(self) -> None:
        """Hide the process group until the program initializes it, once, as under torchrun."""
        self.is_strict, self.is_set_up, self.was_initialized = True, False, False

    def answer_as_cuda(self) -> None:
        """Make ``get_backend`` return "nccl" where the program chose no backend, as it uses ``cuda``."""
        self._shown_backend = "nccl"

    def set_up(self, backend: str | None) -> None:
        """Record that the program has initialized the process group.

        Args:
            backend: backend that it asked for; None for none.

        Raises:
            UsageError: it has initialized the group before, and not destroyed it.
        """
        if self.is_strict and self.is_set_up:
            raise UsageError(
                "init_process_group is called a second time, which torch refuses on a cluster too: call it once, or "
                "check torch.distributed.is_initialized() before"
            )
        self.is_set_up = self.was_initialized = True
        self.choose_backend(None, backend)

    def choose_backend(self, group: dist.ProcessGroup | None, backend: Any) -> None:
        """Record the backend that the program asked for; None for none."""
        if backend is not None:
            self._backends[_name(group)] = str(backend).lower()

    def chosen_backend(self, group: dist.ProcessGroup | None) -> str | None:
        """Return the backend that the program chose for a group, or else for the world, in lower case; None for none.

        Args:
            group: process group; None for all ranks.
        """
        return self._backends.get(_name(group)) or self._backends.get("")

    def backend_of(self, group: dist.ProcessGroup | None) -> str:
        """Return the backend that a group would have on a real cluster: the chosen one, or else that of the target."""
        return self.chosen_backend(group) or self._target_backend

    def shown_backend(self, group: dist.ProcessGroup | None) -> str:
        """Return what ``get_backend`` returns: the chosen backend, or else that of the hardware, or "fake"."""
        return self.chosen_backend(group) or self._shown_backend


def _name(group: dist.ProcessGroup | None) -> str:
    """Return the name of a group; empty for that of all ranks."""
    return "" if group is None or group is dist.group.WORLD else str(group.group_name)


def _init_process_group(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Replace ``init_process_group`` by a check of the size and the rank that the program asks for."""
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
                f"init_process_group asks for rank {rank}, but this process runs as rank {calls.rank} of "
                f"{calls.world}: open the world with rank {rank} (--rank {rank}), or take the rank from the "
                "environment variable RANK"
            )
        calls.set_up(backend)

    return init_process_group


def _destroy_process_group(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``destroy_process_group`` to leave the group of all ranks open, which the world destroys."""
    calls = parts[SetUpCalls]
    calls.destroy = original

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            original(group)
        else:
            calls.is_set_up = False

    return destroy_process_group


def _get_backend(original: Callable[..., str], parts: Parts) -> Callable[..., str]:
    """Wrap ``get_backend`` to return the program's backend in place of "fake"."""
    calls, objects = parts[SetUpCalls], parts[WorldObjects]

    def get_backend(group: dist.ProcessGroup | None = None) -> str:
        if group is not None:
            objects.check_group(group)
        backend = original(group)
        if backend != "fake" or _caller().startswith(_GET_SIMULATED_BACKEND):
            return backend
        return dist.Backend(calls.shown_backend(group))

    return get_backend


def _is_initialized(original: Callable[[], bool], parts: Parts) -> Callable[[], bool]:
    """Wrap ``is_initialized`` to return False in a strict world until the program sets up its groups."""
    calls = parts[SetUpCalls]

    def is_initialized() -> bool:
        is_hidden = calls.is_strict and not calls.is_set_up and not _caller().startswith(_ALWAYS_HAVE_A_GROUP)
        return original() and not is_hidden

    return is_initialized


def _init_device_mesh(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``init_device_mesh`` to create the mesh on the CPU if its device is missing, and to check its size."""
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
    """Wrap ``new_group`` to create a simulated group, and to record the backend that the call names."""
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


def _caller() -> str:
    """Return the name of the module that called the patched function, past the trampoline of `Patches.function`."""
    return str(sys._getframe(3).f_globals.get("__name__", ""))


def _is_available(device_type: str) -> bool:
    module: Any = getattr(torch, str(device_type), None)
    return not hasattr(module, "is_available") or bool(module.is_available())


PATCHES: tuple[Entry, ...] = (
    Patch(INIT_GROUPS, "the group exists already", _init_process_group, by_code=True),
    Patch(DESTROY_GROUPS, "the world lasts until the end of its block", _destroy_process_group, by_code=True),
    Patch(NEW_GROUP, "a simulated group has no other backend", _new_group, by_code=True),
    Patch(GET_BACKEND, "programs branch by the backend", _get_backend, by_code=True),
    Patch(IS_INITIALIZED, "under torchrun no group is initialized at first", _is_initialized, by_code=True),
    Patch(INIT_DEVICE_MESH, "its device may be missing", _init_device_mesh, by_code=True),
)
