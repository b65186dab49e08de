"""Torch's own set-up calls while a simulated world is open: they hand out that world, or say why not.

A training script calls ``init_process_group``, makes its meshes and groups, and ends with
``destroy_process_group``. In a simulated world the first returns at once; meshes over all ranks are made from the
simulated group, on the CPU where the device that they ask for is missing; groups are simulated whatever backend
they ask for; and the last leaves the group to whoever opened the world. Another size is one clear error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from dsexplore.errors import UsageError
from dsexplore.worlds.fake_tensors import outside_fake_mode
from dsexplore.worlds.patches import Patches


class Takeover:
    """Takes the set-up calls over for a world of ``size`` ranks; ``name`` is how messages call that world.

    Attributes:
        initialise: torch's ``init_process_group``.
        destroy: torch's ``destroy_process_group``.
    """

    initialise: Callable[..., None]
    destroy: Callable[..., None]

    def __init__(self, patches: Patches, size: int, name: str) -> None:
        self._size, self._name = size, name
        patches.function(dist.init_process_group, self._take_init)
        patches.function(dist.destroy_process_group, self._take_destroy)
        patches.function(dist.new_group, _take_new_group)
        patches.function(device_mesh.init_device_mesh, self._take_mesh)

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
        if world_size in (-1, None) and init_method in (None, "env://"):
            world_size = int(os.environ.get("WORLD_SIZE", -1))
        if world_size not in (-1, None, self._size):
            raise UsageError(
                f"init_process_group asks for {world_size} ranks, but a simulated world of {self._name} is open: "
                f"open one of {world_size} ranks, or leave world_size out to use this one"
            )

    def _take_destroy(self, original: Callable[..., None]) -> Callable[..., None]:
        self.destroy = original

        def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
            if group is not None and group is not dist.group.WORLD:
                original(group)

        return destroy_process_group

    def _take_mesh(self, original: Callable[..., Any]) -> Callable[..., Any]:
        real = outside_fake_mode(original)

        def init_device_mesh(device_type: str, mesh_shape: Sequence[int], **kwargs: Any) -> Any:
            shape = tuple(mesh_shape)
            if math.prod(shape) != self._size:
                raise UsageError(
                    f"init_device_mesh asks for {'×'.join(map(str, shape))} = {math.prod(shape)} ranks, but the "
                    f"simulated world has {self._name}: make the product {self._size}, or open another world"
                )
            return real(device_type if _is_there(device_type) else "cpu", shape, **kwargs)

        return init_device_mesh


def _take_new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = signature(original)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        return original(**{**given, "backend": None, "pg_options": None})

    return new_group


def _is_there(device_type: str) -> bool:
    module: Any = getattr(torch, str(device_type), None)
    return not hasattr(module, "is_available") or bool(module.is_available())
