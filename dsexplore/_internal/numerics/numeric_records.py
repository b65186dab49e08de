"""Records of one process in a run, as plain data in a file: outputs, gradients and parameters in program order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch

from dsexplore._internal.placement_text import Placement

Phase = Literal["forward", "backward", "gradient", "optimizer"]
"""``forward``: outputs of modules; ``backward``: gradients of these outputs; ``gradient``: gradients of parameters as
the optimizer reads them; ``optimizer``: changes of parameters in a step."""
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class DTensorPlace:
    """The place of a DTensor's local part in the whole."""

    shape: tuple[int, ...]
    """Global shape."""
    placements: tuple[Placement, ...]
    ranks: torch.Tensor
    """Ranks of its mesh, one dim per placement."""


@dataclass(frozen=True)
class NumericRecord:
    """A tensor that a process computed."""

    step: int
    phase: Phase
    module: str
    """Path of the module that returned or holds the tensor; empty for the model itself."""
    name: str
    """Name of the parameter; for an output ``output``, or ``output 1`` and so on."""
    call: int
    """Number of the module's call in this step."""
    inside: tuple[str, ...]
    """Paths of the modules whose calls were in progress, outermost first."""
    value: torch.Tensor
    place: DTensorPlace | None = None
    """Place of the value in a DTensor; None for a plain tensor."""
    sources: tuple[str, ...] | None = None
    """Paths of the nearest modules from whose outputs an output of the reference is computed; None if unknown."""


@dataclass(frozen=True)
class Draw:
    """The draw of one call of a random function inside a module."""

    step: int
    module: str
    call: int
    """Number of the module's call in this step; 0 in a recomputation."""
    function: str
    values: torch.Tensor
    """The draw, see `numerics.draw_mode`: for dropout the mask of dropped elements."""
    is_dtensor: bool
    is_recomputed: bool
    """True if the call was part of a recomputation in backward."""


@dataclass
class RunRecord:
    """All records of one process in a run."""

    rank: int = 0
    model: str = ""
    """Name of the model's class."""
    records: list[NumericRecord] = field(default_factory=list)
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    """{name of a parameter: its value before the first step}."""
    places: dict[str, DTensorPlace] = field(default_factory=dict)
    """{name of a parameter that is a DTensor: place of this rank's part}."""
    rows: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """{name of a parameter that is a plain shard: (dim, indices of the whole parameter that this rank holds)}."""
    unsynchronized: tuple[str, ...] = ()
    """Names of parameters whose replicas have other values before the first step."""
    tied: tuple[tuple[str, ...], ...] = ()
    """All names of each parameter that has several."""
    draws: list[Draw] = field(default_factory=list)
    dropped: dict[tuple[str, str], float] = field(default_factory=dict)
    """{(module, function of dropout): largest share of elements that a call drops}; 0 if it is not in training."""

    def save(self, path: Path) -> None:
        """Write the records to a file."""
        torch.save(self, path)


def load_run(path: Path) -> RunRecord:
    """Return the records that a process has saved; tensors are read when they are used."""
    run: RunRecord = torch.load(path, mmap=True, weights_only=False)
    return run
