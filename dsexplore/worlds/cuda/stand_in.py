"""`cuda_stand_in`: inside a block, ``cuda`` means the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from dsexplore.errors import UsageError
from dsexplore.interrupts import uninterrupted
from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.autocast import patch_autocast
from dsexplore.worlds.cuda.device_marks import patch_marks
from dsexplore.worlds.cuda.flex_masks import patch_block_masks
from dsexplore.worlds.cuda.function_mode import StandInMode, leave, patch_backward, patch_default_device, patch_threads
from dsexplore.worlds.cuda.gpu import Gpu, read_gpu
from dsexplore.worlds.cuda.gpu_kernels import patch_kernels
from dsexplore.worlds.cuda.gradients import patch_gradients
from dsexplore.worlds.cuda.nccl import patch_groups
from dsexplore.worlds.cuda.refused import patch_refused
from dsexplore.worlds.cuda.tensors import (
    patch_checkpoint,
    patch_fake_tensors,
    patch_from_local,
    patch_groups_by_device,
    patch_saved_tensors,
    patch_tensors,
)
from dsexplore.worlds.cuda.torch_cuda import Devices, patch_torch_cuda
from dsexplore.worlds.cuda.torch_load import patch_files

_open: Gpu | None = None


def standing_in() -> Gpu | None:
    """The GPU that is stood in for at the moment, or None."""
    return _open


@contextmanager
def cuda_stand_in(gpu: str = "h100", ranks_per_node: int = 8, local_rank: int = 0) -> Iterator[Gpu]:
    """Make ``cuda`` mean the CPU inside a block, and fake tensors where a fake tensor mode is entered.

    Args:
        gpu: name of the GPU whose answers scripts get (``known_gpus`` lists them), or path of a file of the user's.
        ranks_per_node: number of GPUs of a node.
        local_rank: index of the current device when the block begins.

    Yields:
        What is known of that GPU.

    Raises:
        UsageError: no such GPU, a rank that the node does not have, or a block inside another.
    """
    found = read_gpu(gpu)
    _check(ranks_per_node, local_rank)
    patches = Patches()
    try:
        with uninterrupted():
            _stand_in(patches, found, ranks_per_node, local_rank)
        yield found
    finally:
        with uninterrupted():
            patches.undo()


def _check(ranks_per_node: int, local_rank: int) -> None:
    if _open is not None:
        raise UsageError(f"a CPU stands in for {_open.name} already: close that block first, or use it as it is")
    if ranks_per_node < 1:
        raise UsageError(f"a node of {ranks_per_node} GPUs cannot be: give 1 or more")
    if not 0 <= local_rank < ranks_per_node:
        raise UsageError(
            f"local rank {local_rank} is not in a node of {ranks_per_node} GPUs: "
            f"give one from 0 to {ranks_per_node - 1}"
        )


def _stand_in(patches: Patches, gpu: Gpu, count: int, local_rank: int) -> None:
    global _open
    _open = gpu
    # Imported before anything is changed: this module keeps what it finds in torch._C.
    import_module("torch._dynamo.device_interface")
    patches.callback(_forget)
    devices = Devices(gpu, count, local_rank)
    mode = StandInMode(lambda: devices.current)
    patch_marks(patches)
    patch_torch_cuda(patches, devices)
    patch_autocast(patches)
    patch_files(patches, mode)
    patch_tensors(patches)
    patch_fake_tensors(patches, mode)
    patch_checkpoint(patches)
    patch_saved_tensors(patches)
    patch_groups_by_device(patches, mode)
    patch_from_local(patches, mode)
    patch_groups(patches, mode)
    patch_kernels(patches)
    patch_refused(patches)
    on_import(patches, "torch.nn.attention.flex_attention", partial(patch_block_masks, mode, patches))
    patch_backward(patches, mode)
    patch_gradients(patches)
    patch_threads(patches, mode)
    mode.__enter__()  # type: ignore[no-untyped-call]
    patches.callback(leave, mode)
    patch_default_device(patches, mode)


def _forget() -> None:
    global _open
    _open = None
