"""Coalesced collectives on fake tensors, for which torch has no meta kernels, unlike for all others of c10d."""

from __future__ import annotations

from typing import Any

from dsexplore.torch_internals.patches import Entry, Kernel
from dsexplore.torch_internals.process_groups import finished_work

_OPS = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)


def _return_work(*_: Any) -> Any:
    """Return the work of a collective that is done: outputs without memory have no values to be written."""
    return finished_work().boxed()


PATCHES: tuple[Entry, ...] = tuple(
    Kernel(
        f"c10d::{name}",
        "Meta",
        "torch has none",
        lambda _parts: _return_work,
        when="fake",
        only_if_missing=True,
    )
    for name in _OPS
)
