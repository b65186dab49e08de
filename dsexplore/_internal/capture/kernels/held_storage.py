"""`Held`: one counted storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Use = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "inputs"]
"""``parameters``: with the buffers of modules, and leaves that require a gradient. ``gradients``: what the optimizer
finds as ``.grad``, and what was there before the recording and is first met in backward, as DDP's buckets.
``activations``: whatever forward and backward hold besides. ``buffers``: gathered parameters, and what collectives
read and write. ``inputs``: what was there before the recording besides, as a batch."""
USES: tuple[Use, ...] = get_args(Use)


@dataclass(slots=True, eq=False)
class Held:
    """The memory of one storage that is watched, and its place among those that a compiler fuses: `FusedTensors`."""

    size: int
    use: Use
    changes: list[tuple[int, int]]
    """(segment, bytes) of its first size and of each change of it; they add up to `size`."""
    reference: Any
    number: int
    """A number that no other storage gets, even after this one is freed and its address reused."""
    is_counted: bool = True
    """False of what no kernel writes."""
    is_gone: bool = False
    region: int | None = None
    """The compiled module in which an op made it that is fused."""
    parents: list[Held] = field(default_factory=list)
    """For an uncounted storage, those that it is computed from."""
    children: list[Held] = field(default_factory=list)
    """Uncounted storages that are computed from this one."""

    def resize(self, segment: int, change: int) -> None:
        """Add to its bytes."""
        self.size += change
        since, last = self.changes[-1]
        if since == segment:
            self.changes[-1] = (segment, last + change)
        else:
            self.changes.append((segment, change))
