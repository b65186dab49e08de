"""`FusedTensors`: which tensors of compiled modules no kernel writes, so that they take no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dsexplore._internal.capture.kernels.held_storage import Held, Use
from dsexplore._internal.capture.kernels.op_costs import AtenOp
from dsexplore._internal.trace.schema import Phase

_WRITTEN = {"embedding_dense_backward", "index_put", "index_put_", "scatter", "scatter_add", "sort", "topk", "sum"}
"""Memory ops of compiled modules whose results a kernel writes all the same."""


def can_be_fused(op: AtenOp, phase: Phase) -> bool:
    """Return True if a compiler need not write the result of this memory op of a compiled module.

    In-place sums of gradients over microbatches are written: by FSDP or autograd, not by compiled code.
    """
    adds_gradients = phase == "backward" and op.writes
    return op.name not in _WRITTEN and not adds_gradients


class FusedTensors:
    """Tensors that a compiler fuses away: no kernel writes them, as their readers compute them again.

    Between two products a compiler makes one kernel, which writes what the next product reads, and what leaves the
    compiled module. Backward gets few tensors and computes the rest from them. So a tensor made by a fused op is not
    counted at first. One that is counted and no longer referred to is kept for those that are computed from it, or
    these are counted in its place where they are smaller: so torch's partitioner mostly decides, which cuts the graph
    where the fewest bytes pass (``torch/_functorch/partitioners.py``).

    Args:
        add: changes the bytes of a use.
    """

    def __init__(self, add: Callable[[Use, int], None]) -> None:
        self._add = add
        self.some = 0
        """Number of tensors that are not counted."""

    def compute(self, held: Held, sources: Iterable[Held]) -> None:
        """Note what an uncounted tensor is computed from, besides what is known; a counted one has been written."""
        for source in () if held.is_counted else sources:
            _join(source, held)

    def count(self, held: Held) -> None:
        """Count a tensor as written from now on."""
        if not held.is_counted:
            held.is_counted = True
            self.some -= 1
            self._leave(held)
            self._add(held.use, held.size)

    def free(self, held: Held) -> None:
        """Release a tensor that is not referenced any more, or count the tensors computed from it in its place."""
        held.is_gone = True
        if not held.is_counted:
            self.some -= 1
            for child in held.children:
                child.parents.remove(held)
                for parent in held.parents:
                    _join(parent, child)
            self._leave(held)
        elif not held.children:
            self._add(held.use, -held.size)
        elif sum(child.size for child in held.children) <= held.size:
            for child in list(held.children):
                self.count(child)

    def _leave(self, held: Held) -> None:
        """Remove a tensor from its parents, and release freed parents that no other tensor depends on."""
        parents, held.parents = held.parents, []
        for parent in parents:
            parent.children.remove(held)
            if parent.is_gone and not parent.children:
                self._add(parent.use, -parent.size)


def _join(parent: Held, child: Held) -> None:
    if parent is not child and parent not in child.parents:
        child.parents.append(parent)
        parent.children.append(child)
