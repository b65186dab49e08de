"""Coalesced collectives on fake tensors, for which torch 2.13 has no meta kernels, unlike for all others of c10d."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork

from dsexplore.torch_internals.patches import Patches

_OPS = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)


def patch_coalesced(patches: Patches) -> None:
    """Collectives that ``torch.distributed`` coalesces run on fake tensors from now on."""
    library = torch.library.Library("c10d", "IMPL")
    patches.callback(library._destroy)
    for name in _OPS:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "Meta"):
            library.impl(name, _work, "Meta")


def _work(*_: Any) -> Any:
    """The work of a collective that is done: outputs of meta tensors have no values to be written."""
    return FakeWork().boxed()
