"""What one process computed in a run: outputs, gradients and parameters in program order, as plain data in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch

from dsexplore._internal.placement_text import Placement

Phase = Literal["forward", "backward", "gradient", "optimizer"]
"""``forward``: outputs of modules; ``backward``: gradients of these outputs; ``gradient``: gradients of parameters as
the optimizer finds them; ``optimizer``: what a step added to parameters."""
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class DTensorPlace:
    """Where the local part of a DTensor lies."""

    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    ranks: torch.Tensor
    """The ranks of its mesh, one dim per placement."""


@dataclass(frozen=True)
class NumericRecord:
    """One tensor that a process computed."""

    step: int
    phase: Phase
    module: str
    """Path of the module that returned it or holds it; empty for the model itself."""
    name: str
    """Name of the parameter; ``output``, or ``output 1`` and so on, for what a module returned."""
    call: int
    """Number of the module's call in this step."""
    inside: tuple[str, ...]
    """Paths of the modules whose calls were in progress, outermost first."""
    value: torch.Tensor
    place: DTensorPlace | None = None
    """None for a plain tensor."""
    sources: tuple[str, ...] | None = None
    """Of the reference's output: paths of the modules whose outputs it is computed of, the nearest; None if unknown."""


@dataclass(frozen=True)
class Draw:
    """What one call of a random function drew on a rank, inside of a module."""

    step: int
    module: str
    call: int
    function: str
    values: torch.Tensor
    """Of dropout the elements that it set to zero; of attention, which hides them, the generator's state before it."""
    is_dtensor: bool
    is_recomputed: bool
    """Whether it ran in backward, in what is computed again there."""


@dataclass
class RunRecord:
    """All that one process recorded in a run."""

    rank: int = 0
    model: str = ""
    """Name of the model's class."""
    records: list[NumericRecord] = field(default_factory=list)
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameters before the first step, by name; of the reference also buffers."""
    places: dict[str, DTensorPlace] = field(default_factory=dict)
    """Where parameters lie that are DTensors, by name."""
    rows: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """{parameter that is a plain shard: (dim, indices of the whole parameter that this rank holds)}."""
    unsynchronized: tuple[str, ...] = ()
    """Parameters that other ranks hold with other values before the first step."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names of each parameter that has several."""
    draws: list[Draw] = field(default_factory=list)
    dropped: dict[tuple[str, str], float] = field(default_factory=dict)
    """{(module, function): the largest share that its calls of that dropout drop; 0 out of training}."""

    def save(self, path: Path) -> None:
        """Write this to a file."""
        torch.save(self, path)


def load_run(path: Path) -> RunRecord:
    """Return what a process has saved; tensors are read when they are used."""
    run: RunRecord = torch.load(path, mmap=True, weights_only=False)
    return run
