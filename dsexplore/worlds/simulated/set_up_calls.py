"""Torch's own set-up calls while a simulated world is open: they hand out that world, or say why not.

A training script calls ``init_process_group``, makes its meshes and groups, and ends with
``destroy_process_group``. In a simulated world the first returns at once; meshes over all ranks are made from the
simulated group, on the CPU where the device that they ask for is missing; groups are simulated whatever backend
they ask for, and ``get_backend`` returns the one asked for; and the last leaves the group to whoever opened the
world. Another size is one clear error.
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
from torch.distributed import device_mesh

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.fake_tensors import outside_fake_mode

_KNOW_THE_SIMULATION = (
    "dsexplore.capture",
    "dsexplore.comm.log_records",
    "dsexplore.trace",
    "torch.distributed.device_mesh",
    "torch.distributed.distributed_c10d",
)
"""Modules that are answered with the group as it is: those that record it, and those of torch that run it."""

_ALWAYS_HAVE_A_GROUP = ("dsexplore.", "torch.distributed.distributed_c10d")


class SetUpCalls:
    """Takes the set-up calls over for a world of ``size`` ranks.

    Args:
        patches: where the changes are kept.
        size: number of ranks.
        rank: the rank that this process plays.
        name: how messages call that world.
        backend: what ``get_backend`` returns of a group whose backend nobody chose.

    Attributes:
        initialise: torch's ``init_process_group``.
        destroy: torch's ``destroy_process_group``.
        was_initialised: whether the program has called ``init_process_group``, or torch for it.
    """

    initialise: Callable[..., None]
    destroy: Callable[..., None]

    def __init__(self, patches: Patches, size: int, rank: int, name: str, backend: str = "fake") -> None:
        self._size, self._rank, self._name, self._default = size, rank, name, backend
        self._backends: dict[str, str] = {}  # by the name of a group: what was asked for
        self._strict = self._is_set_up = self.was_initialised = False
        patches.function(dist.init_process_group, self._take_init)
        patches.function(dist.destroy_process_group, self._take_destroy)
        patches.function(dist.new_group, self._take_new_group)
        patches.function(dist.get_backend, self._take_get_backend)
        patches.function(dist.is_initialized, self._take_is_initialized)
        patches.function(device_mesh.init_device_mesh, self._take_mesh)

    def expect_set_up(self) -> None:
        """Hide the process group until the program initialises it, which it may do once, as under torchrun."""
        self._strict, self._is_set_up, self.was_initialised = True, False, False

    def _take_init(self, original: Callable[..., None]) -> Callable[..., None]:
        self.initialise = original
        return self._init_process_group

    def _init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        from_launcher = init_method in (None, "env://")
        if world_size in (-1, None) and from_launcher:
            world_size = int(os.environ.get("WORLD_SIZE", -1))
        if world_size not in (-1, None, self._size):
            raise UsageError(
                f"init_process_group asks for {world_size} ranks, but a simulated world of {self._name} is open: "
                f"open one of {world_size} ranks, or leave world_size out to use this one"
            )
        if rank not in (-1, None, self._rank):
            raise UsageError(
                f"init_process_group asks to be rank {rank}, but this process plays rank {self._rank} of "
                f"{self._name}: open the world with rank {rank} (--rank {rank}), or take the rank from the "
                "environment variable RANK"
            )
        if self._strict and self._is_set_up:
            raise UsageError(
                "init_process_group is called a second time, which torch refuses on a cluster too: call it once, or "
                "ask torch.distributed.is_initialized() before"
            )
        self._is_set_up = self.was_initialised = True
        if backend is not None:
            self._backends[_name(None)] = str(backend).lower()

    def _take_destroy(self, original: Callable[..., None]) -> Callable[..., None]:
        self.destroy = original

        def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
            if group is not None and group is not dist.group.WORLD:
                original(group)
            else:
                self._is_set_up = False

        return destroy_process_group

    def _take_get_backend(self, original: Callable[..., str]) -> Callable[..., str]:
        def get_backend(group: dist.ProcessGroup | None = None) -> str:
            actual = original(group)
            if actual != "fake" or _caller().startswith(_KNOW_THE_SIMULATION):
                return actual
            return dist.Backend(self.chosen_backend(group) or self._default)

        return get_backend

    def chosen_backend(self, group: dist.ProcessGroup | None) -> str | None:
        """The backend that the program chose for a group, or else for all ranks, in lower case; None for neither."""
        return self._backends.get(_name(group)) or self._backends.get(_name(None))

    def _take_is_initialized(self, original: Callable[[], bool]) -> Callable[[], bool]:
        def is_initialized() -> bool:
            hidden = self._strict and not self._is_set_up and not _caller().startswith(_ALWAYS_HAVE_A_GROUP)
            return original() and not hidden

        return is_initialized

    def _take_mesh(self, original: Callable[..., Any]) -> Callable[..., Any]:
        real = outside_fake_mode(original)

        def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *args: Any, **kwargs: Any) -> Any:
            shape = tuple(mesh_shape)
            if math.prod(shape) > self._size:
                raise UsageError(
                    f"init_device_mesh asks for {'×'.join(map(str, shape))} = {math.prod(shape)} ranks, but the "
                    f"simulated world has {self._name}: make the product {self._size}, or open another world"
                )
            return real(device_type if _is_there(device_type) else "cpu", shape, *args, **kwargs)

        return init_device_mesh

    def _take_new_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(original)
        names = tuple(parameters.parameters)

        def new_group(*args: Any, **kwargs: Any) -> Any:
            if args:
                parameters.bind(*args, **kwargs)  # raises what the call would raise
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            group = original(**{**given, "backend": None, "pg_options": None})
            if given.get("backend") is not None and isinstance(group, dist.ProcessGroup):
                self._backends[_name(group)] = str(given["backend"]).lower()
            return group

        return new_group


def _caller() -> str:
    """The module that called the function that calls this one, past the jump that `Patches.function` makes."""
    name = sys._getframe(3).f_globals.get("__name__", "")
    return str(name)


def _name(group: dist.ProcessGroup | None) -> str:
    """The name of a group; "" for the one of all ranks."""
    return "" if group is None or group is dist.group.WORLD else str(group.group_name)


def _is_there(device_type: str) -> bool:
    module: Any = getattr(torch, str(device_type), None)
    return not hasattr(module, "is_available") or bool(module.is_available())
