"""`Held` is one storage of a program; `FusedTensors` finds those that no kernel writes, and that take no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dsexplore._internal.capture.kernels.op_costs import AtenOp
from dsexplore._internal.trace.schema import Phase

Use = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "inputs"]
"""The use of a storage.

* ``parameters``: parameters and buffers of modules, and leaves that require a gradient.
* ``gradients``: the ``.grad`` of parameters when an optimizer steps, and storages from before the recording that are
  first used in backward, such as DDP's buckets.
* ``optimizer``: the state of optimizers.
* ``activations``: all other results of forward and backward.
* ``buffers``: gathered parameters, and tensors that FSDP's collectives read and write.
* ``inputs``: all other storages from before the recording, such as a batch.
"""
USES: tuple[Use, ...] = get_args(Use)


@dataclass(slots=True, eq=False)
class Held:
    """One storage, and its place in the graph of storages that `FusedTensors` keeps."""

    size: int
    """Bytes."""
    use: Use
    changes: list[tuple[int, int]]
    """(segment, bytes) of its first size and of each change; the bytes add up to `size`."""
    reference: Any
    """A weak reference to the storage, whose callback frees this entry."""
    number: int
    """A unique number; addresses of storages are reused."""
    is_counted: bool = True
    """False while no kernel writes it."""
    is_gone: bool = False
    """True once nothing refers to the storage any more."""
    region: int | None = None
    """Identity of the compiled module whose fused op returned it; None for any other storage."""
    parents: list[Held] = field(default_factory=list)
    """The storages that an uncounted storage is computed from."""
    children: list[Held] = field(default_factory=list)
    """The uncounted storages that are computed from this one."""

    def resize(self, segment: int, change: int) -> None:
        """Add `change` bytes in a segment."""
        self.size += change
        latest, added = self.changes[-1]
        if latest == segment:
            self.changes[-1] = (segment, added + change)
        else:
            self.changes.append((segment, change))


_WRITTEN = {"embedding_dense_backward", "index_put", "index_put_", "scatter", "scatter_add", "sort", "topk", "sum"}
"""Memory ops whose results a compiled module writes to memory."""


def can_be_fused(op: AtenOp, phase: Phase) -> bool:
    """Return True if a compiler need not write the result of a memory op of a compiled module.

    In-place sums of gradients over microbatches are written, by FSDP or autograd and not by compiled code.
    """
    adds_gradients = phase == "backward" and op.writes
    return op.name not in _WRITTEN and not adds_gradients


class FusedTensors:
    """Counts the storages of compiled modules: results of fused ops only if a kernel writes them.

    A compiler makes one kernel of the pointwise ops between two matrix products. In ``linear2(gelu(linear1(x) + b))``
    no kernel writes the sum. It writes gelu's result, as the second product reads it. Three rules follow:

    1. The result of a fused op is uncounted at first, and refers to its sources (`add`).
    2. It is counted once another kernel reads it, or once it leaves its module (`count`).
    3. Backward recomputes an uncounted result from its sources. So a counted storage that nothing refers to any more
       stays counted as a source, unless the results computed from it take no more bytes. In that case these are counted
       in its place (`free`). Torch's partitioner also cuts the graph where the fewest bytes pass
       (``torch/_functorch/partitioners.py``).

    Args:
        add_bytes: adds a number of bytes to those of a use.
    """

    def __init__(self, add_bytes: Callable[[Use, int], None]) -> None:
        self._add_bytes = add_bytes
        self._num_uncounted = 0

    def __len__(self) -> int:
        """Return the number of storages that are not counted."""
        return self._num_uncounted

    def add(self, held: Held, region: int) -> None:
        """Add the uncounted result of a fused op.

        Args:
            held: the storage of the result.
            region: identity of the compiled module.
        """
        held.is_counted, held.region = False, region
        self._num_uncounted += 1

    def add_sources(self, held: Held, sources: Iterable[Held]) -> None:
        """Add sources that an uncounted storage is computed from; a counted one needs none."""
        if not held.is_counted:
            for source in sources:
                _join(source, held)

    def count(self, held: Held) -> None:
        """Count a storage from now on, as a kernel writes it."""
        if not held.is_counted:
            held.is_counted = True
            self._num_uncounted -= 1
            self._leave_sources(held)
            self._add_bytes(held.use, held.size)

    def free(self, held: Held) -> None:
        """Release a storage that nothing refers to any more, by rule 3."""
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
        """Remove a storage from its sources; release freed sources that no other storage is computed from."""
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
