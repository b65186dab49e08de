"""`simulate`: one process runs as one rank of a world of N, and nothing is sent.

Requirements on this module:

* mesh and groups are torch's own: a `DeviceMesh`, and groups of torch's "fake" backend. So TP, SP, FSDP2, DDP and
  their combinations run unchanged, and issue the collectives that they issue on real ranks;
* one table lists everything that is replaced in torch (``patch_table``);
* a training script that initializes its process group gets the simulated one (``set_up_calls``), and finds the
  environment variables that torchrun sets (``launcher_environment``);
* names of groups are unique among worlds, so a model of a closed world cannot use the next one; its use raises an
  error (``closed``);
* a failure to open leaves nothing behind, and closing restores groups, modes, replaced functions, environment
  variables and ``sys.excepthook``, on success, exception and Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import NoneType
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.mesh import MeshLike
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.torch_internals.dtensor import change_device_type
from dsexplore._internal.torch_internals.fake_tensors import without_fake_mode
from dsexplore._internal.torch_internals.patches import Parts, Patches, When, install_all
from dsexplore._internal.user_warnings import warn_of_untested_torch
from dsexplore._internal.worlds.cuda.first_use import FirstUse
from dsexplore._internal.worlds.fake.fake_dispatch import fake_mode
from dsexplore._internal.worlds.fake.fake_lists import ListMode
from dsexplore._internal.worlds.fake.invented_values import Inventor
from dsexplore._internal.worlds.fake.unsupported import explained
from dsexplore._internal.worlds.patch_table import TABLE
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.scripts.spawned import StartedProcesses
from dsexplore._internal.worlds.simulated.closed import WorldObjects
from dsexplore._internal.worlds.simulated.launcher_environment import environment, launcher_variables
from dsexplore._internal.worlds.simulated.nothing_sent import Use
from dsexplore._internal.worlds.simulated.other_ranks_objects import Objects
from dsexplore._internal.worlds.simulated.pipeline import StageShapes
from dsexplore._internal.worlds.simulated.set_up_calls import SetUpCalls
from dsexplore._internal.worlds.simulated.shared_objects import SharedObjects
from dsexplore._internal.worlds.simulated.simulated_stores import SimulatedStore
from dsexplore._internal.worlds.world_settings import WorldSettings

_current: World | None = None


def current_world() -> World | None:
    """Return the simulated world that is open now, or None."""
    return _current


@names_arguments
@contextmanager
def simulate(
    world_size: int | MeshLike | None = None,
    mesh: MeshLike | None = None,
    rank: int = 0,
    fake: bool = False,
    *,
    ranks_per_node: int | None = None,
    hardware: str | None = None,
    values: Mapping[str, float] | None = None,
) -> Iterator[DeviceMesh]:
    """Open a simulated world for the block, and yield its device mesh.

    This process runs as one rank: collectives are issued, and can be traced, but nothing is sent. So counts, bytes,
    groups and placements are those of the real program; **values are not** (each rank sees its own shard only).

    Args:
        world_size: number of ranks; may be omitted if ``mesh`` is given. A mesh is accepted here too.
        mesh: the axes, outermost first: ``"dp=2,tp=4"``, a mapping, or a ``DeviceMesh``. Without one
            the mesh has a single axis without a name.
        rank: the rank to run as.
        fake: run the block on fake tensors, which have shapes but no memory: for models that do not fit here.
        ranks_per_node: ranks on each node, 8 unless given; sets ``LOCAL_RANK`` and similar variables.
        hardware: the machine whose traffic is shown and which ``torch.cuda`` describes: a GPU (``"h100"``) or a cluster
            (``"dgx-h100"``) with NCCL, for which the CPU stands in, or ``"cpu"``, CPUs with gloo; see
            `worlds.simulated.target_traffic`. None: an H100, for which the CPU stands in once the program uses
            ``cuda``; until a tensor is on ``cuda``, the mesh is one of CPUs.
        values: results of reading fake tensors on certain lines, ``{"train.py:31": 0.5}``; where a shape depends on
            values, the number of elements. On other lines they are invented, and a note of the trace says so.

    Yields:
        A ``torch.distributed.device_mesh.DeviceMesh`` of that device over all ranks.

    Raises:
        UsageError: the numbers contradict each other, or a process group is initialized already.

    Examples:
        >>> with dsexplore.simulate(mesh="dp=2,tp=4", rank=5) as mesh:
        ...     print(dist.get_world_size(), tuple(mesh.get_coordinate()))
        8 (1, 1)
    """
    if not isinstance(world_size, (int, NoneType)):
        if mesh is not None:
            raise UsageError(f"world_size={world_size!r} and mesh={mesh!r}: give the mesh once, and a number of ranks")
        world_size, mesh = None, world_size
    settings = WorldSettings(
        world_size=world_size,
        mesh=mesh,
        rank=rank,
        fake=fake,
        ranks_per_node=ranks_per_node,
        hardware=hardware,
        values=values,
    )
    with opened(settings) as device_mesh:
        yield device_mesh


@contextmanager
def opened(settings: WorldSettings) -> Iterator[DeviceMesh]:
    """Open a simulated world for the block, and yield its device mesh, as `simulate` does.

    Raises:
        UsageError: the settings contradict each other, or a process group is initialized already.
    """
    world = World(settings)
    try:
        with explained():
            yield world.open()
    finally:
        world.close()


class World:
    """One simulated world. Most code uses `simulate`; `open` and `close` are for code that cannot use a block.

    Args:
        settings: the world to open.

    Attributes:
        size: number of ranks.
        spec: the mesh that the user named.
        rank: the rank that this process runs as.
        fake: True if tensors are fake.
        ranks_per_node: ranks on a node.
        hardware: the machine; None for an H100 from the first use of ``cuda``.
        gpu: its GPU: a name, or the path of a file; ``"cpu"`` for none.
        target: the traffic that is shown: ``"cuda"``, GPUs with NCCL, or ``"cpu"``, gloo.
        remarks: warnings and notes about the world.
        stage_shapes: source of other pipeline stages' shapes; set it before the world is opened.
        shared_objects: objects of other ranks that run at the same time; set it before the world is opened.

    Raises:
        UsageError: the settings contradict each other.
    """

    def __init__(self, settings: WorldSettings) -> None:
        self._settings = settings = settings.resolved()
        self.size, self.spec, self.rank = settings.size, settings.spec, settings.rank
        self.fake, self.hardware, self.target = settings.fake, settings.hardware, settings.target
        self.gpu, self.ranks_per_node = settings.gpu, settings.node_size
        self.remarks = Remarks()
        self.stage_shapes = StageShapes()
        self.shared_objects = SharedObjects()
        self._exit = ExitStack()
        self._store = SimulatedStore()  # a reference for its Python part, which C++ does not keep alive
        self._mesh: DeviceMesh | None = None
        self._num_meshes = 0

    def __str__(self) -> str:
        return str(self._settings)

    def open(self) -> DeviceMesh:
        """Set the world up, and return its mesh.

        Raises:
            UsageError: another world is open, or a process group is initialized.
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
        """Set the world up step by step; each step leaves its undoing in ``self._exit``."""
        global _current
        _current = self
        self._exit.callback(_forget)
        self._exit.enter_context(environment(launcher_variables(self.rank, self.size, self.ranks_per_node)))
        inventor = Inventor(self.remarks, self._settings.values)
        calls = SetUpCalls(self._settings)
        self._parts = parts = Parts(
            self._settings, self.remarks, self.stage_shapes, self.shared_objects, inventor, calls
        )
        parts.add(Objects(parts))
        patches = Patches()
        self._exit.callback(patches.undo)
        for sentence in install_all(TABLE, self._conditions(), patches, parts):
            self.remarks.say(sentence)
        self._exit.callback(self._destroy)
        calls.initialize("fake", store=self._store, rank=self.rank, world_size=self.size)
        if self._settings.has_cuda:
            self._exit.enter_context(self._cuda(calls))
        # Keep the mesh: a program that drops its own reference still has the groups of its axes.
        self._mesh = mesh = device_mesh.init_device_mesh(
            "cuda" if self._settings.has_cuda else "cpu",
            self.spec.shape or (self.size,),
            mesh_dim_names=self.spec.axes or None,
        )
        self._num_meshes = parts[WorldObjects].meshes
        mode = self._exit.enter_context(fake_mode(inventor)) if self.fake else None
        if self._settings.awaits_cuda:
            use = parts[FirstUse]
            self._exit.enter_context(use.awaited(self._begin_cuda))
            if mode is not None:
                mode.first_use = use
        return mesh

    def _begin_cuda(self) -> None:
        """Make the CPU stand in for GPUs from now on; the mesh becomes one of ``cuda`` with the first tensor there."""
        from dsexplore._internal.worlds.cuda.device_marks import when_first_placed

        calls, mesh = self._parts[SetUpCalls], self._mesh
        assert mesh is not None
        with without_fake_mode():
            self._exit.enter_context(self._cuda(calls))
        calls.answer_as_cuda()
        when_first_placed(partial(change_device_type, mesh, "cuda"))

    def expect_set_up(self) -> None:
        """Provide the process group only once the program initializes it, as torchrun does."""
        self._parts[SetUpCalls].expect_set_up()
        if self.fake and not self._settings.has_cuda:  # the stand-in for GPUs has such a mode of its own
            self._exit.enter_context(ListMode())

    @property
    def used(self) -> Use:
        """Use that the program has made of this world so far."""
        objects = self._parts[WorldObjects]
        return Use(
            initialized=self._parts[SetUpCalls].was_initialized,
            meshes=objects.meshes - self._num_meshes,
            modules=objects.modules,
            started_processes=self._parts[StartedProcesses].some,
        )

    def close(self) -> None:
        """Restore torch and the environment; a second call does nothing."""
        with uninterrupted():
            self._exit.close()
            self._mesh = None

    def _conditions(self) -> set[When]:
        """Return the conditions of patch tables that hold in this world."""
        conditions: set[When] = {"always"}
        if self.fake:
            conditions.add("fake")
        if self.target == "cuda":
            conditions.add("cuda traffic")
        return conditions

    def _cuda(self, calls: SetUpCalls) -> AbstractContextManager[Any]:
        """Return the context in which the CPU stands in for GPUs."""
        # Imported here: these modules load parts of torch.cuda that only programs for GPUs need.
        from dsexplore._internal.worlds.cuda.sent_tensors import ChosenBackends
        from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

        self._parts.add(ChosenBackends(calls.chosen_backend))
        return cuda_stand_in(
            gpu=self._settings.gpu,
            ranks_per_node=self.ranks_per_node,
            local_rank=self.rank % self.ranks_per_node,
            parts=self._parts,
        )

    def _destroy(self) -> None:
        if dist.is_initialized():
            self._parts[SetUpCalls].destroy()
        self._parts[WorldObjects].close(str(self))


def _forget() -> None:
    global _current
    _current = None


def _refuse_second(world: World) -> None:
    """Raise UsageError if another world is open or a process group is initialized."""
    if _current is not None:
        raise UsageError(
            f"a simulated world of {_current} is open: close it first (leave its block, or %commtrace --close), "
            "or use it as it is"
        )
    if dist.is_initialized():
        raise UsageError(
            f"a process group of {dist.get_world_size()} ranks (backend {dist.get_backend()}) is initialized already, "
            f"so no world of {world} can be simulated: call torch.distributed.destroy_process_group() first, "
            "or record that group with a bare commtrace"
        )
