"""`Held` is one storage whose bytes `LiveMemory` counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

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
