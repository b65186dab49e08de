"""`TABLE`: everything of torch that is replaced where a CPU stands in for GPUs, in the order in which it is replaced.

It is a module of its own because what it imports loads parts of ``torch.cuda`` that nothing else needs.
"""

from __future__ import annotations

from dsexplore._internal.torch_internals.patches import Entry
from dsexplore._internal.worlds.cuda import (
    autocast,
    device_marks,
    export,
    flex_masks,
    function_mode,
    gpu_kernels,
    gpu_sensors,
    gradients,
    nccl,
    profilers,
    refused,
    rng,
    sent_tensors,
    tensor_construction,
    torch_cuda,
    torch_load,
)
from dsexplore._internal.worlds.cuda import (
    tensor_functions as tensor_functions,  # has functions for the mode, and no entries
)

TABLE: tuple[Entry, ...] = (
    *device_marks.PATCHES,
    *torch_cuda.PATCHES,
    *gpu_sensors.PATCHES,
    *profilers.PATCHES,
    *rng.PATCHES,
    *autocast.PATCHES,
    *torch_load.PATCHES,
    *tensor_construction.PATCHES,
    *nccl.PATCHES,
    *gpu_kernels.PATCHES,
    *refused.PATCHES,
    *flex_masks.PATCHES,
    *export.PATCHES,
    *gradients.PATCHES,
    *sent_tensors.PATCHES,
    *function_mode.PATCHES,
)
"""The function mode comes last: it is entered when all that it relies on is in place."""
