"""Entries of comparisons made of plain tensors, for rules and layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.numerics.compared_runs import Comparison, coordinates_of
from dsexplore._internal.numerics.compared_values import Compared, HeldValues, compare
from dsexplore._internal.numerics.numeric_records import NumericRecord, Phase
from dsexplore._internal.numerics.part_layouts import Holder

ALLOWED = 1e-9


def entry_of(
    whole: Tensor, values: Sequence[Tensor], mesh: str, phase: Phase = "forward", module: str = ""
) -> Compared:
    """Compare a whole with plain tensors of all ranks."""
    spec = parse_mesh(mesh)
    held = [
        HeldValues(
            Holder(rank, 0, {**coordinates_of(spec, rank), "call": 0}),
            value,
            tuple(value.shape),
            tuple(torch.arange(size) for size in value.shape),
            frozenset(),
        )
        for rank, value in enumerate(values)
    ]
    name = "output" if phase in ("forward", "backward") else "weight"
    record = NumericRecord(0, phase, module, name, 0, (), whole)
    return compare(record, whole, held, ALLOWED, scales=phase == "backward")


def comparison_of(mesh: str, *entries: Compared) -> Comparison:
    """Return a comparison of these entries."""
    return Comparison(parse_mesh(mesh), list(entries), [], is_exact=True)


def values(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that are all different."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
