"""Patches that make torch send on simulated ranks what it sends on the target, the cluster of the world.

A simulation runs on CPU tensors and on groups that send nothing. In a few places torch checks the device or the name of
the backend, and sends other collectives on CPUs with gloo than on GPUs with NCCL. There a world makes torch send those
of its target. These are the places, each with the module of this folder that handles it:

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

Without these patches a simulation sends what CPUs send, with two exceptions: ``torch.distributed.nn`` checks for gloo
by name, and a simulated group has another backend; and the errors of the last row come from the backends.
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
"""The newer name if torch has it: torch 2.13 warns about the older one."""


def _shard_dim_alltoall(original: Function, _parts: Parts) -> Function:
    """Replace the redistribution of a DTensor from one sharded dim to another by an all_to_all.

    Mirrors ``shard_dim_alltoall`` in ``torch/distributed/tensor/_collective_utils.py``, which gathers the whole tensor
    on a CPU mesh. Its caller pads uneven shards before, and removes the padding after, on any device.
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
    """Replace the check of whether a mesh has random generators, so that DTensors on a CPU mesh share a state too.

    Mirrors ``is_rng_supported_mesh`` in ``torch/distributed/tensor/_random.py``, which returns False for a CPU: DTensor
    then creates no ``OffsetBasedRNGTracker``.
    """
    return lambda device_mesh: True


class GeneratorTracker(dtensor.RngTracker):  # type: ignore[misc] # of a class that torch does not type
    """Sends what torch's ``OffsetBasedRNGTracker`` sends when it is created, and does not change random numbers.

    Args:
        device_mesh: mesh of the first random op.
        run_state_sync: whether rank 0 broadcasts its state.
    """

    def __init__(self, device_mesh: DeviceMesh, run_state_sync: bool = True) -> None:
        super().__init__(torch.device("cpu"))
        if run_state_sync:
            cuda_state = torch.zeros(16, dtype=torch.uint8)
            dist.broadcast(cuda_state, 0)

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

    Mirrors ``_are_we_tracing`` in ``torch/distributed/_functional_collectives.py``, which returns True in any fake
    tensor mode, also in that of the world: DTensor then skips the broadcast.
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
        if group is None:  # the original handles this case
            return original(handle, padded_unsharded_flat_param)
        _all_gather_into_tensor(padded_unsharded_flat_param, handle.flat_param.data, group)
        return padded_unsharded_flat_param

    return gathered


def _take_module_states(_original: Function, _parts: Parts) -> Function:
    """Replace a check by none, so that FSDP1 broadcasts parameters and buffers if ``sync_module_states=True``.

    Mirrors ``_check_module_states_for_sync_module_states`` in ``torch/distributed/fsdp/_init_utils.py``, which refuses
    CPU tensors.
    """
    return lambda module_states: None


def _check_hook(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Wrap the check of communication hooks to accept ``bf16_compress_hook`` and its wrapper.

    Mirrors ``DistributedDataParallel._check_comm_hook`` in ``torch/nn/parallel/distributed.py``, which refuses hooks of
    these names if torch is built without CUDA, or finds no NCCL.
    """

    @wraps(original)
    def check(self: DistributedDataParallel, hook: Any) -> None:
        if getattr(hook, "__name__", "").startswith("bf16_compress"):

            def renamed_hook(*_args: Any) -> None: ...

            renamed_hook.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined] # torch reads it
            hook = renamed_hook
        original(self, hook)

    return check


class DistWithBackends(ModuleType):
    """``torch.distributed`` with another ``get_backend``, for a module of torch that branches by the backend.

    Args:
        backend_of: returns the backend of a group, None for the group of all ranks; replaces ``get_backend``.
    """

    def __init__(self, backend_of: Callable[[dist.ProcessGroup | None], str]) -> None:
        super().__init__("torch.distributed")
        self.get_backend = lambda group=None: backend_of(group)

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)


def _send_as_target(_original: ModuleType, parts: Parts) -> ModuleType:
    """Make ``torch.distributed.nn`` find the target's backend.

    Mirrors ``_AllGather.backward``, ``_AllGatherBase.backward`` and ``_AlltoAll.forward`` in
    ``torch/distributed/nn/functional.py``, which branch by the group's backend.
    """
    backend = parts[WorldSettings].backend
    return DistWithBackends(lambda _group: backend)


PATCHES: tuple[Entry, ...] = (
    Patch(DIST_OF_NN, "torch checks for gloo by name", _send_as_target),
    Patch(
        dtensor.SHARD_DIM_ALLTOALL,
        "a DTensor is redistributed in another way on a CPU",
        _shard_dim_alltoall,
        when="cuda traffic",
        by_code=True,
    ),
    Patch(
        dtensor.IS_RNG_SUPPORTED,
        "a random op on a DTensor sends nothing on a CPU",
        _is_rng_supported,
        when="cuda traffic",
        by_code=True,
    ),
    Patch(
        dtensor.RNG_TRACKER,
        "a random op on a DTensor sends nothing on a CPU",
        _generator_tracker,
        when="cuda traffic",
    ),
    Patch(
        dtensor.IS_TRACING_IN_DISPATCH,
        "a random op on a fake DTensor would count as traced by a compiler",
        _are_we_tracing,
        when="cuda traffic",
    ),
    Patch(
        fsdp.GATHER_FLAT_PARAMETER,
        "FSDP1 gathers into a list on a CPU",
        _gather_flat_parameter,
        when="cuda traffic",
        on_import=True,
    ),
    Patch(
        fsdp.CHECK_MODULE_STATES,
        "FSDP1 refuses tensors on a CPU",
        _take_module_states,
        when="cuda traffic",
        by_code=True,
        on_import=True,
    ),
    Patch(ddp.CHECK_HOOK, "it refuses bf16 hooks on a CPU", _check_hook, when="cuda traffic"),
)
