"""`simulate`: one process plays one rank of a world of N, and nothing is sent.

Requirements on this module:

* the world is torch's own: the mesh is torch's `DeviceMesh`, the groups are torch's "fake" backend, so TP, SP,
  FSDP2, DDP and their combinations run unchanged, and what they communicate is what they would;
* a training script that sets up its group itself gets the simulated one (``set_up_calls``), and finds the variables
  that torchrun sets (``launcher_environment``);
* groups have names that no other world has, so a model of a closed world can never use the next one, and says
  so when used (``closed``);
* opening and closing take all or nothing, and closing takes everything back on success, exception and Ctrl-C:
  groups, modes, patches, environment variables, ``sys.excepthook``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.tensor._random as tensor_random
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._collective_utils import MeshTopoInfo
from torch.distributed.tensor._redistribute import _gen_transform_infos, clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from dsexplore.errors import UsageError
from dsexplore.interrupts import uninterrupted
from dsexplore.torch_internals.patches import Parts, Patches, When, install_all
from dsexplore.units import format_count
from dsexplore.user_warnings import naming_the_user, warn_of_untested_torch
from dsexplore.worlds.fake.fake_dispatch import fake_mode
from dsexplore.worlds.fake.fake_lists import ListMode
from dsexplore.worlds.fake.invented_values import Inventor
from dsexplore.worlds.fake.known_shardings import patch_shardings
from dsexplore.worlds.fake.unsupported import explained
from dsexplore.worlds.patch_table import TABLE
from dsexplore.worlds.remarks import Remarks
from dsexplore.worlds.scripts.spawned import StartedProcesses
from dsexplore.worlds.simulated import closed
from dsexplore.worlds.simulated.flat_gathers import patch_flat_gathers
from dsexplore.worlds.simulated.futures import patch_futures
from dsexplore.worlds.simulated.launcher_environment import check_ranks_per_node, environment, launcher_variables
from dsexplore.worlds.simulated.long_lists import patch_long_lists
from dsexplore.worlds.simulated.missing_peers import patch_calls
from dsexplore.worlds.simulated.nothing_sent import Use
from dsexplore.worlds.simulated.other_ranks_objects import Objects
from dsexplore.worlds.simulated.own_groups import patch_mesh_groups
from dsexplore.worlds.simulated.pipeline import StageShapes, patch_pipeline
from dsexplore.worlds.simulated.received_values import Received, patch_reads_of_received
from dsexplore.worlds.simulated.set_up_calls import SetUpCalls
from dsexplore.worlds.simulated.shared_objects import SharedObjects
from dsexplore.worlds.simulated.simulated_stores import SimulatedStore
from dsexplore.worlds.simulated.target_traffic import BACKENDS, Target, check_target, patch_target
from dsexplore.worlds.simulated.uneven_gathers import patch_uneven_gathers
from dsexplore.worlds.world_settings import WorldSettings, resolve

_numbers = count(1)
_current: World | None = None


def current_world() -> World | None:
    """The simulated world that is open now, or None."""
    return _current


@contextmanager
def simulate(
    world_size: int | None = None,
    mesh: str | Mapping[str, int] | None = None,
    rank: int = 0,
    fake: bool = False,
    *,
    ranks_per_node: int | None = None,
    device: str = "cpu",
    gpu: str = "h100",
    target: Target = "cuda",
    values: Mapping[str, float] | None = None,
) -> Iterator[DeviceMesh]:
    """Open a simulated world for the block, and give its device mesh.

    This process plays one rank: collectives are issued, and can be traced, but nothing is sent. So counts, bytes,
    groups and placements are those of the real program; **values are not** (each rank sees its own shard only).

    Args:
        world_size: number of ranks; may be left out where ``mesh`` says it.
        mesh: the axes, outermost first: ``"dp=2,tp=4"``, or a mapping. Without one the mesh has a single axis
            without a name.
        rank: the rank to play.
        fake: run the block on fake tensors, which have shapes but no memory: for models that do not fit here.
        ranks_per_node: ranks on each node, 8 unless given, of which ``LOCAL_RANK`` and its kin follow.
        device: ``"cuda"`` lets the CPU stand in for GPUs, so that a program written for them runs here.
        gpu: which GPU ``torch.cuda`` describes then.
        target: whose traffic to show where torch goes another way on a CPU: ``"cuda"``, GPUs with NCCL, or ``"cpu"``,
            CPUs with gloo; see `dsexplore.worlds.simulated.target_traffic`.
        values: what reads of fake tensors return on certain lines, ``{"train.py:31": 0.5}``, and how many elements
            there are where values decide; elsewhere they are invented, which the trace's notes say.

    Yields:
        A ``torch.distributed.device_mesh.DeviceMesh`` of that device over all ranks.

    Raises:
        UsageError: the numbers do not fit together, or a process group is there already.
    """
    settings = WorldSettings(
        world_size=world_size,
        mesh=mesh,
        rank=rank,
        fake=fake,
        ranks_per_node=ranks_per_node,
        device=device,
        gpu=gpu,
        target=target,
        values=values,
    )
    with opened(settings) as device_mesh:
        yield device_mesh


@contextmanager
def opened(settings: WorldSettings) -> Iterator[DeviceMesh]:
    """Open a simulated world for the block, and give its device mesh, as `simulate` does.

    Raises:
        UsageError: the settings do not fit together, or a process group is there already.
    """
    world = World(settings)
    try:
        with explained():
            yield world.open()
    finally:
        world.close()


class World:
    """One simulated world; `simulate` is its usual form, `open` and `close` are for code that cannot use a block.

    Args:
        settings: the world to open.

    Attributes:
        size: number of ranks.
        spec: the mesh that the user named.
        rank: the rank that this process plays.
        fake: whether tensors are fake.
        ranks_per_node: ranks on a node.
        device: ``"cpu"``, or ``"cuda"`` where the CPU stands in for GPUs.
        gpu: the GPU that is stood in for.
        target: the hardware and backend whose traffic is shown.
        remarks: what the world must say of itself.
        stage_shapes: the source of other pipeline stages' shapes; to be set before the world is opened.
        shared_objects: objects of other ranks that are played at the same time; to be set likewise.

    Raises:
        UsageError: the settings do not fit together.
    """

    def __init__(self, settings: WorldSettings) -> None:
        self.size, self.spec = resolve(settings.world_size, settings.mesh, settings.rank)
        self.rank, self.fake = settings.rank, settings.fake
        self.ranks_per_node = check_ranks_per_node(settings.ranks_per_node, self.size)
        self.device, self.gpu = settings.device, settings.gpu
        if self.device not in ("cpu", "cuda"):
            raise UsageError(
                f"device {self.device!r}: simulated ranks have 'cpu', or 'cuda', for which the CPU stands in"
            )
        self.target = check_target("cuda" if settings.target is None else settings.target)
        self._settings = replace(settings, world_size=self.size, ranks_per_node=self.ranks_per_node, target=self.target)
        self.remarks = Remarks()
        self.stage_shapes = StageShapes()
        self.shared_objects = SharedObjects()
        self._inventor = Inventor(self.remarks, settings.values)
        self._exit = ExitStack()
        self._watch = closed.Watch()
        self._store = SimulatedStore()  # held here: C++ does not keep the part of it that is Python
        self._mesh: DeviceMesh | None = None

    def __str__(self) -> str:
        ranks = format_count(self.size, "rank")
        return f"{ranks} ({self.spec})" if self.spec.axes else ranks

    def open(self) -> DeviceMesh:
        """Set the world up, and return its mesh.

        Raises:
            UsageError: a process group is there already.
        """
        warn_of_untested_torch()
        with uninterrupted():
            _refuse_second(self)
            try:
                return self._open()
            except BaseException:
                self._exit.close()
                raise

    def _open(self) -> DeviceMesh:
        global _current
        _current = self
        self._exit.callback(_forget)
        self._exit.enter_context(environment(launcher_variables(self.rank, self.size, self.ranks_per_node)))
        patches = Patches()
        self._exit.callback(patches.undo)
        self._parts = Parts(
            self._settings, self.remarks, self.stage_shapes, self.shared_objects, self._inventor, self._watch
        )
        backend = "nccl" if self.device == "cuda" else "fake"
        self._set_up_calls = set_up_calls = SetUpCalls(patches, self.size, self.rank, str(self), backend)
        self._patch(patches)
        self._exit.callback(_clear_caches)
        self._exit.callback(self._destroy, set_up_calls)
        set_up_calls.initialise("fake", store=self._store, rank=self.rank, world_size=self.size)
        if self.device == "cuda":
            self._exit.enter_context(self._cuda(set_up_calls.chosen_backend))
        # The mesh is kept here, so that a program that drops its own reference still has the groups of its axes.
        self._mesh = mesh = device_mesh.init_device_mesh(
            self.device, self.spec.shape or (self.size,), mesh_dim_names=self.spec.axes or None
        )
        self._meshes, _ = self._watch.made
        if self.fake:
            self._exit.enter_context(fake_mode(self._inventor))
        return mesh

    def expect_set_up(self) -> None:
        """Make the process group be there only for a program that initialises it, as for one that torchrun starts."""
        self._set_up_calls.expect_set_up()
        if self.fake and self.device != "cuda":  # the mode of a GPU that is not there reads lists itself
            self._exit.enter_context(ListMode())

    @property
    def used(self) -> Use:
        """The use that the program has made of this world so far."""
        meshes, modules = self._watch.made
        started = self._parts[StartedProcesses].some
        return Use(self._set_up_calls.was_initialised, meshes - self._meshes, modules, started)

    def close(self) -> None:
        """Take everything back; a second call does nothing."""
        with uninterrupted():
            self._exit.close()
            self._mesh = None

    def _patch(self, patches: Patches) -> None:
        number = next(_numbers)
        patches.function(c10d._process_group_name, partial(_name_groups, number))
        patches.callback(_restore_excepthook, sys.excepthook)
        patches.attribute(warnings, "_showwarnmsg", naming_the_user(warnings._showwarnmsg))  # type: ignore[attr-defined]
        patches.attribute(tensor_random, "_rng_tracker", tensor_random._rng_tracker)
        patch_mesh_groups(patches, self.rank)
        self._watch.install(patches)
        received = Received()
        objects = Objects(patches, self.remarks, received, self.shared_objects)
        patch_pipeline(patches, self.stage_shapes, objects, self.remarks, BACKENDS[self.target])
        patch_flat_gathers(patches)
        patch_uneven_gathers(patches, self.target)
        patch_shardings(patches)
        patch_long_lists(patches)
        patch_futures(patches)
        patch_target(patches, self.target)
        patch_calls(patches, self.remarks)
        patch_reads_of_received(patches, received, self.remarks)
        self._parts.add(objects)
        for sentence in install_all(TABLE, self._conditions(), patches, self._parts):
            self.remarks.say(sentence)

    def _conditions(self) -> set[When]:
        conditions: set[When] = {"always"}
        if self.fake:
            conditions.add("fake")
        if self.target == "cuda":
            conditions.add("cuda traffic")
        return conditions

    def _cuda(self, backend_of: Callable[[dist.ProcessGroup | None], str | None]) -> AbstractContextManager[Any]:
        # Imported when a program for GPUs is to run: they load parts of torch.cuda that nothing else needs.
        from dsexplore.worlds.cuda.sent_tensors import ChosenBackends
        from dsexplore.worlds.cuda.stand_in import cuda_stand_in

        self._parts.add(ChosenBackends(backend_of))
        return cuda_stand_in(self.gpu, self.ranks_per_node, self.rank % self.ranks_per_node, self._parts)

    def _destroy(self, set_up_calls: SetUpCalls) -> None:
        if dist.is_initialized():
            set_up_calls.destroy()
        self._watch.close(str(self))


def _forget() -> None:
    global _current
    _current = None


def _refuse_second(world: World) -> None:
    if _current is not None:
        raise UsageError(
            f"a simulated world of {_current} is open: close it first (leave its block, or %commtrace --close), "
            "or use it as it is"
        )
    if dist.is_initialized():
        raise UsageError(
            f"a process group of {dist.get_world_size()} ranks (backend {dist.get_backend()}) is initialised already, "
            f"so no world of {world} can be simulated: call torch.distributed.destroy_process_group() first, "
            "or record that group with a bare commtrace"
        )


def _name_groups(number: int, original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args, **kwargs: closed.GROUP_NAME.format(number=number, name=original(*args, **kwargs))


def _restore_excepthook(before: Any) -> None:
    if getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = before


def _clear_caches() -> None:
    """Release the meshes that DTensor's caches hold."""
    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()
    _gen_transform_infos.cache_clear()
    MeshTopoInfo.build_from_mesh.cache_clear()
    DTensor._op_dispatcher.sharding_propagator._propagate_tensor_meta_cached.cache_clear()
