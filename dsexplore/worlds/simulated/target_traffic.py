"""The target of a simulated world: the cluster that a program is written for, whose traffic it shows.

A simulation runs on CPU tensors and on groups that move nothing. In a few places torch asks for the device of a tensor
or of a mesh, or for the name of a backend, and goes one way on a CPU and another on a GPU with NCCL. `patch_target`
makes torch go the target's way, so that a trace has the collectives that the target would send. Each fork of torch 2.13
is one function here, which names the torch source that it mirrors:

| where | on CPUs with gloo | on GPUs with NCCL |
|---|---|---|
| DTensor, ``S(0)→S(1)`` | all_gather of the whole tensor, then a slice | all_to_all |
| DTensor, the first random op | nothing | broadcast of the generator's state, 16 bytes |
| DTensor and context parallel, attention | no rule for the CPU's kernel: an error | flash attention's rules and ring |
| FSDP1, all_gather of a flat parameter | into a list of tensors | into one tensor |
| FSDP1, ``sync_module_states=True`` | an error | broadcast of the module |
| ``torch.distributed.nn``: backward of ``all_gather`` | a scatter per rank, then a sum | reduce_scatter |
| ``torch.distributed.nn``: backward of ``_all_gather_base`` | an error | reduce_scatter |
| ``torch.distributed.nn``: ``all_to_all`` | a scatter per rank | all_to_all |
| DDP, ``bf16_compress_hook`` | an error | all_reduce of half the bytes |
| `SyncBatchNorm` of tensors on ``cuda`` | an error | all_gather of the statistics, all_reduce of their gradients |
| ``torch.optim``, told neither ``foreach`` nor ``fused`` | one parameter after another | lists of all parameters |

Not simulated yet: attention of DTensors with a mask. The target
``cpu`` is what torch does on CPUs anyway, but for the two rows of ``torch.distributed.nn`` which ask for gloo by name:
a simulated group has another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.distributed.fsdp._init_utils as fsdp_init
import torch.distributed.nn.functional as differentiable
import torch.distributed.tensor._collective_utils as tensor_collectives
import torch.distributed.tensor._dispatch as tensor_dispatch
import torch.distributed.tensor._random as tensor_random
from torch._guards import TracingContext
from torch.compiler import is_compiling
from torch.distributed._functional_collectives import _are_we_tracing, _group_or_group_name, _resolve_group
from torch.distributed._local_tensor import local_tensor_mode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture.frame_kinds import mark_start_up
from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.fake_dispatch import SimulationMode

Target = Literal["cuda", "cpu"]
TARGETS: tuple[Target, ...] = get_args(Target)

BACKENDS: dict[Target, str] = {"cuda": dist.Backend.NCCL, "cpu": dist.Backend.GLOO}


def check_target(target: Any) -> Target:
    """The target that was given.

    Raises:
        UsageError: it is none of `TARGETS`.
    """
    if target not in TARGETS:
        raise UsageError(
            f"target {target!r} is not known: give 'cuda' for the traffic of GPUs with NCCL, or 'cpu' for that of gloo"
        )
    return target  # type: ignore[no-any-return] # checked above


def patch_target(patches: Patches, target: Target) -> None:
    """Make torch issue the target's collectives until the patches are undone."""
    patch_autograd_collectives(patches, target)
    if target == "cuda":
        for patch in (
            patch_shard_dim_alltoall,
            patch_generator_state,
            patch_flat_parameters,
            patch_module_states,
            patch_bf16_hook,
        ):
            patch(patches)


def patch_shard_dim_alltoall(patches: Patches) -> None:
    """A DTensor that goes from one sharded dim to another is sent by all_to_all.

    Mirrors ``shard_dim_alltoall`` in ``torch/distributed/tensor/_collective_utils.py``, which gathers the whole tensor
    on a CPU mesh. Its caller pads uneven shards before and cuts them after, for both ways.
    """

    def build(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def shard_dim_alltoall(
            input: torch.Tensor,  # noqa: A002 - torch's name
            gather_dim: int,
            shard_dim: int,
            mesh: DeviceMesh,
            mesh_dim: int,
        ) -> torch.Tensor:
            if local_tensor_mode() is not None:
                return original(input, gather_dim, shard_dim, mesh, mesh_dim)
            name = _group_or_group_name(_resolve_group((mesh, mesh_dim)))
            sent: torch.Tensor = torch.ops._dtensor.shard_dim_alltoall(input, gather_dim, shard_dim, name)
            return sent

        return shard_dim_alltoall

    patches.function(tensor_collectives.shard_dim_alltoall, build)


def patch_generator_state(patches: Patches) -> None:
    """The first random op on DTensors broadcasts the state of the generator, and ``rand`` and ``randn`` work.

    Mirrors ``OffsetBasedRNGTracker`` in ``torch/distributed/tensor/_random.py``, which is not made on a CPU mesh.
    """
    patches.function(tensor_random.is_rng_supported_mesh, lambda _original: lambda device_mesh: True)
    patches.attribute(tensor_random, "OffsetBasedRNGTracker", GeneratorTracker)

    def are_we_tracing() -> bool:
        """Whether a compiler traces what runs; torch would take the world's own fake mode for one."""
        if isinstance(torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE), SimulationMode):
            return is_compiling() or TracingContext.try_get() is not None or get_proxy_mode() is not None
        return _are_we_tracing()

    patches.attribute(tensor_dispatch, "_are_we_tracing", are_we_tracing)


class GeneratorTracker(tensor_random._RNGStateTracker):
    """Sends what torch's tracker sends when it is made; random numbers are drawn as they come.

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


def patch_flat_parameters(patches: Patches) -> None:
    """FSDP1 gathers a flat parameter into one tensor.

    Mirrors ``FlatParamHandle._all_gather_flat_param`` in ``torch/distributed/fsdp/_flat_param.py``, which gathers a
    CPU tensor into a list of its chunks.
    """
    original: Callable[..., torch.Tensor] = FlatParamHandle._all_gather_flat_param

    @wraps(original)
    def gathered(handle: Any, padded_unsharded_flat_param: torch.Tensor) -> torch.Tensor:
        if handle._offload_params:  # then the rest of the original counts too
            return original(handle, padded_unsharded_flat_param)
        group = handle._fake_process_group if handle._use_fake_all_gather else handle.process_group
        _all_gather_into_tensor(padded_unsharded_flat_param, handle.flat_param.data, group)
        return padded_unsharded_flat_param

    patches.attribute(FlatParamHandle, "_all_gather_flat_param", gathered)


def patch_module_states(patches: Patches) -> None:
    """FSDP1 broadcasts a module's parameters and buffers where ``sync_module_states=True`` asks for it.

    Mirrors ``_check_module_states_for_sync_module_states`` in ``torch/distributed/fsdp/_init_utils.py``, which refuses
    tensors on a CPU.
    """
    patches.function(
        fsdp_init._check_module_states_for_sync_module_states, lambda _original: lambda module_states: None
    )


def patch_bf16_hook(patches: Patches) -> None:
    """DDP takes ``bf16_compress_hook`` and its wrapper.

    Mirrors ``DistributedDataParallel._check_comm_hook`` in ``torch/nn/parallel/distributed.py``, which refuses hooks of
    these names where torch is built without CUDA.
    """
    original: Callable[..., None] = DistributedDataParallel._check_comm_hook

    @wraps(original)
    def check(module: DistributedDataParallel, hook: Any) -> None:
        if getattr(hook, "__name__", "").startswith("bf16_compress"):

            def other_name(*_args: Any) -> None: ...

            other_name.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined] # what inspect looks for
            hook = other_name
        original(module, hook)

    patches.attribute(DistributedDataParallel, "_check_comm_hook", check)


def patch_autograd_collectives(patches: Patches, target: Target) -> None:
    """The collectives of ``torch.distributed.nn`` go the way of the target's backend.

    Mirrors ``_AllGather.backward``, ``_AllGatherBase.backward`` and ``_AlltoAll.forward`` in
    ``torch/distributed/nn/functional.py``, which ask for the group's backend.
    """
    patches.attribute(differentiable, "dist", _BackendOf(BACKENDS[target]))


_all_gather_into_tensor = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""The newer name where torch has it: torch 2.13 warns of the older one."""


class _BackendOf(ModuleType):
    """``torch.distributed``, whose groups all have the same backend."""

    def __init__(self, backend: str) -> None:
        super().__init__("torch.distributed")
        self.get_backend = lambda group=None: backend

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)
