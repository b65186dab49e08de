"""The target of a simulated world: the cluster that a program is written for, whose traffic the world shows.

A simulation runs on CPU tensors and on groups that send nothing. In a few places torch asks for a device or for the
name of a backend, and sends other collectives on CPUs with gloo than on GPUs with NCCL. There a world makes torch send
those of its target. These are the places, each with the module of this folder that handles it:

| module | where | on CPUs with gloo | on GPUs with NCCL |
|---|---|---|---|
| this one | DTensor, ``S(0)→S(1)`` | all_gather of the whole tensor, then a slice | all_to_all |
| this one | DTensor, the first random op | nothing | broadcast of the generator's state, 16 bytes |
| this one | FSDP1, all_gather of a flat parameter | into a list of tensors | into one tensor |
| this one | FSDP1, ``sync_module_states=True`` | an error | broadcast of the module |
| this one | DDP, ``bf16_compress_hook`` | an error | all_reduce of half the bytes |
| this one | ``torch.distributed.nn``: backward of ``all_gather`` | a scatter per rank, then a sum | reduce_scatter |
| this one | ``torch.distributed.nn``: backward of ``_all_gather_base`` | an error | reduce_scatter |
| this one | ``torch.distributed.nn``: ``all_to_all`` | a scatter per rank | all_to_all |
| `attention` | attention of DTensors without a mask, context parallelism | an error | flash attention, ring |
| `sync_batch_norm` | `SyncBatchNorm` on ``cuda`` | an error | all_gather of statistics, all_reduce of gradients |
| `foreach_optimizers` | ``torch.optim`` without ``foreach``, ``fused`` | parameter by parameter | lists of parameters |
| `refusals` | all_reduce of sparse tensors | their values and indices | an error |

Left alone, a simulation sends what CPUs send, with two exceptions: ``torch.distributed.nn`` asks for gloo by name, and
a simulated group has another; the errors of the last row are those of backends that are not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import is_compiling
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.capture.stack.frame_kinds import mark_start_up
from dsexplore._internal.torch_internals import aten, ddp, dtensor, fsdp
from dsexplore._internal.torch_internals.dispatch import current_tracing_context
from dsexplore._internal.torch_internals.fake_tensors import active_fake_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import DIST_OF_NN
from dsexplore._internal.worlds.fake.fake_dispatch import SimulationMode
from dsexplore._internal.worlds.world_settings import WorldSettings

Function = Callable[..., Any]

_all_gather_into_tensor = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""The newer name where torch has it: torch 2.13 warns of the older one."""


def _shard_dim_alltoall(original: Function, _parts: Parts) -> Function:
    """Send a DTensor that goes from one sharded dim to another by all_to_all.

    Mirrors ``shard_dim_alltoall`` in ``torch/distributed/tensor/_collective_utils.py``, which gathers the whole tensor
    on a CPU mesh. Its caller pads uneven shards before and cuts them after, for both ways.
    """

    def shard_dim_alltoall(
        input: torch.Tensor,  # noqa: A002 - torch's name
        gather_dim: int,
        shard_dim: int,
        mesh: DeviceMesh,
        mesh_dim: int,
    ) -> torch.Tensor:
        if dtensor.local_tensor_mode() is not None:
            sharded: torch.Tensor = original(input, gather_dim, shard_dim, mesh, mesh_dim)
        else:
            sharded = aten.shard_dim_alltoall(input, gather_dim, shard_dim, mesh.get_group(mesh_dim).group_name)
        return sharded

    return shard_dim_alltoall


def _is_rng_supported(_original: Function, _parts: Parts) -> Function:
    """Replace the check for a mesh with a random generator, so that DTensors on a CPU mesh share its state too.

    Mirrors ``is_rng_supported_mesh`` in ``torch/distributed/tensor/_random.py``, which says no for a CPU: DTensor then
    makes no ``OffsetBasedRNGTracker``.
    """
    return lambda device_mesh: True


class GeneratorTracker(dtensor.RngTracker):  # type: ignore[misc] # of a class that torch does not type
    """Sends what torch's ``OffsetBasedRNGTracker`` sends when it is made; random numbers are drawn as they come.

    Args:
        device_mesh: the mesh of the first random op.
        run_state_sync: whether all ranks take over the state of rank 0.
    """

    def __init__(self, device_mesh: DeviceMesh, run_state_sync: bool = True) -> None:
        super().__init__(torch.device("cpu"))
        if run_state_sync:
            state_of_a_gpu = torch.zeros(16, dtype=torch.uint8)
            dist.broadcast(state_of_a_gpu, 0)

    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Any:
        return nullcontext()

    def _compute_rng_offsets(self, spec: Any) -> tuple[int, int]:
        return 0, 0


mark_start_up(GeneratorTracker.__init__.__code__)


def _generator_tracker(_original: type, _parts: Parts) -> type[GeneratorTracker]:
    """Replace ``OffsetBasedRNGTracker`` in ``torch/distributed/tensor/_random.py``, which refuses a CPU mesh."""
    return GeneratorTracker


def _are_we_tracing(original: Callable[[], bool], _parts: Parts) -> Callable[[], bool]:
    """Replace the check for tracing, so that the first random op of fake DTensors broadcasts the generator's state.

    Mirrors ``_are_we_tracing`` in ``torch/distributed/_functional_collectives.py``, which takes any mode of fake
    tensors for a compiler that traces, also that of the world: DTensor then leaves the broadcast out.
    """

    def are_we_tracing() -> bool:
        if isinstance(active_fake_mode(), SimulationMode):
            return is_compiling() or current_tracing_context() is not None or get_proxy_mode() is not None
        return original()

    return are_we_tracing


def _gather_flat_parameter(original: Callable[..., torch.Tensor], _parts: Parts) -> Callable[..., torch.Tensor]:
    """Gather a flat parameter of FSDP1 into one tensor.

    Mirrors ``FlatParamHandle._all_gather_flat_param`` in ``torch/distributed/fsdp/_flat_param.py``, which gathers a
    CPU tensor into a list of its chunks.
    """

    @wraps(original)
    def gathered(handle: Any, padded_unsharded_flat_param: torch.Tensor) -> torch.Tensor:
        group = fsdp.group_of_gather(handle)
        if group is None:  # then the rest of the original counts too
            return original(handle, padded_unsharded_flat_param)
        _all_gather_into_tensor(padded_unsharded_flat_param, handle.flat_param.data, group)
        return padded_unsharded_flat_param

    return gathered


def _take_module_states(_original: Function, _parts: Parts) -> Function:
    """Make FSDP1 broadcast a module's parameters and buffers where ``sync_module_states=True`` asks for it.

    Mirrors ``_check_module_states_for_sync_module_states`` in ``torch/distributed/fsdp/_init_utils.py``, which refuses
    CPU tensors.
    """
    return lambda module_states: None


def _check_hook(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Replace the check of communication hooks by one that accepts ``bf16_compress_hook`` and its wrapper.

    Mirrors ``DistributedDataParallel._check_comm_hook`` in ``torch/nn/parallel/distributed.py``, which refuses hooks of
    these names where torch is built without CUDA, or finds no NCCL.
    """

    @wraps(original)
    def check(self: DistributedDataParallel, hook: Any) -> None:
        if getattr(hook, "__name__", "").startswith("bf16_compress"):

            def hook_of_another_name(*_args: Any) -> None: ...

            hook_of_another_name.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined] # read by torch
            hook = hook_of_another_name
        original(self, hook)

    return check


class DistWithBackends(ModuleType):
    """``torch.distributed`` as a module of torch finds it that asks for the backends of groups.

    Args:
        backend_of: returns the backend of a group.
    """

    def __init__(self, backend_of: Callable[[dist.ProcessGroup | None], str]) -> None:
        super().__init__("torch.distributed")
        self.get_backend = lambda group=None: backend_of(group)

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)


def _send_as_target(_original: ModuleType, parts: Parts) -> ModuleType:
    """Send the collectives of ``torch.distributed.nn`` as the target's backend does.

    Mirrors ``_AllGather.backward``, ``_AllGatherBase.backward`` and ``_AlltoAll.forward`` in
    ``torch/distributed/nn/functional.py``, which ask for the group's backend.
    """
    backend = parts[WorldSettings].backend
    return DistWithBackends(lambda _group: backend)


PATCHES: tuple[Entry, ...] = (
    Patch(DIST_OF_NN, "torch asks for gloo by name", _send_as_target),
    Patch(
        dtensor.SHARD_DIM_ALLTOALL,
        "a DTensor that is sharded anew goes another way on a CPU",
        _shard_dim_alltoall,
        when="cuda traffic",
        by_code=True,
    ),
    Patch(
        dtensor.IS_RNG_SUPPORTED,
        "a random op on a DTensor goes another way on a CPU",
        _is_rng_supported,
        when="cuda traffic",
        by_code=True,
    ),
    Patch(
        dtensor.RNG_TRACKER,
        "a random op on a DTensor goes another way on a CPU",
        _generator_tracker,
        when="cuda traffic",
    ),
    Patch(
        dtensor.IS_TRACING_IN_DISPATCH,
        "a random op on a fake DTensor would be taken for one that a compiler traces",
        _are_we_tracing,
        when="cuda traffic",
    ),
    Patch(
        fsdp.GATHER_FLAT_PARAMETER,
        "FSDP1 goes another way on a CPU",
        _gather_flat_parameter,
        when="cuda traffic",
        on_import=True,
    ),
    Patch(
        fsdp.CHECK_MODULE_STATES,
        "FSDP1 goes another way on a CPU",
        _take_module_states,
        when="cuda traffic",
        by_code=True,
        on_import=True,
    ),
    Patch(ddp.CHECK_HOOK, "a communication hook goes another way on a CPU", _check_hook, when="cuda traffic"),
)
