"""`ModuleEntry`: the name, place and calls of one ``nn.Module``."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch import nn


@dataclass(slots=True, eq=False)
class ModuleEntry:
    """One module of a recorded program: its place in its model, and its number of calls. It keeps no module alive."""

    reference: weakref.ref[nn.Module]
    type: str
    """Name of its class."""
    root: ModuleEntry | None = None
    """The outermost module of its model; None if it is the outermost module."""
    path: str = ""
    """Fully qualified name below the root, ``"layers.0.attn"``; empty for the root."""
    position: int = 0
    """Index in the root's ``named_modules``."""
    label: str = ""
    """For a root, the name of its class, numbered if several models share it (``Llama#2``); else empty."""
    calls: int = 0
    """Number of forwards that began, including recomputation."""

    @property
    def name(self) -> str:
        """Full name of the module, which begins with its root's label: ``"Llama.layers.0.attn"``."""
        label = self.root.label if self.root is not None else self.label
        return f"{label}.{self.path}" if self.path else label

    def holds(self, other: ModuleEntry) -> bool:
        """Return True if another module is inside this one, or is this one."""
        if (self.root or self) is not (other.root or other):
            return False
        return not self.path or f"{other.path}.".startswith(f"{self.path}.")
