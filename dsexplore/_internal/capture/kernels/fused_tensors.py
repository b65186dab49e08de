"""`FusedTensors`: which storages of compiled modules no kernel writes, so that they take no memory."""

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
    """Count the storages of compiled modules: results of fused ops only where a kernel writes them.

    A compiler makes one kernel of the pointwise ops between two matrix products. Of ``linear2(gelu(linear1(x) + b))``
    no kernel writes the sum; gelu's result is written, as the second product reads it. Three rules follow:

    1. The result of a fused op is uncounted at first, and knows its sources (`add`).
    2. It is counted once another kernel reads it, or once it leaves its module (`count`).
    3. Backward needs what an uncounted result is computed from. So when nothing refers to a counted storage any more,
       it stays counted for the results computed from it, unless these take no more bytes together: then they are
       counted in its place (`free`). Torch's partitioner likewise cuts the graph where the fewest bytes pass
       (``torch/_functorch/partitioners.py``).

    Args:
        add_bytes: changes the bytes of a use.
    """

    def __init__(self, add_bytes: Callable[[Use, int], None]) -> None:
        self._add_bytes = add_bytes
        self._num_uncounted = 0

    def __len__(self) -> int:
        """Return the number of storages that are not counted."""
        return self._num_uncounted

    def add(self, held: Held, region: int) -> None:
        """Take in the result of a fused op of a compiled module, whose bytes are not counted."""
        held.is_counted, held.region = False, region
        self._num_uncounted += 1

    def add_sources(self, held: Held, sources: Iterable[Held]) -> None:
        """Note what an uncounted storage is computed from, besides what is known; a counted one has been written."""
        for source in () if held.is_counted else sources:
            _join(source, held)

    def count(self, held: Held) -> None:
        """Count a storage as written from now on."""
        if not held.is_counted:
            held.is_counted = True
            self._num_uncounted -= 1
            self._leave_sources(held)
            self._add_bytes(held.use, held.size)

    def free(self, held: Held) -> None:
        """Release a storage that nothing refers to any more, or count those computed from it in its place."""
        held.is_gone = True
        if not held.is_counted:
            self._num_uncounted -= 1
            for child in held.children:
                child.parents.remove(held)
                for parent in held.parents:
                    _join(parent, child)
            self._leave_sources(held)
        elif not held.children:
            self._add_bytes(held.use, -held.size)
        elif sum(child.size for child in held.children) <= held.size:
            for child in list(held.children):
                self.count(child)

    def _leave_sources(self, held: Held) -> None:
        """Remove a storage from its sources, and release those that are gone and that no other storage needs."""
        parents, held.parents = held.parents, []
        for parent in parents:
            parent.children.remove(held)
            if parent.is_gone and not parent.children:
                self._add_bytes(parent.use, -parent.size)


def _join(parent: Held, child: Held) -> None:
    """Make one storage a source of another."""
    if parent is not child and parent not in child.parents:
        child.parents.append(parent)
        parent.children.append(child)
