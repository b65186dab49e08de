"""Find where the slices of a rank's part are in the reference, along each dim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dsexplore.numerics.compared_values import Compared, Part
from dsexplore.numerics.initial_weights import matching_indices
from dsexplore.numerics.part_layouts import block

TOLERANCE = 1e-8


def moved_slices(parts: Sequence[Part], entry: Compared) -> Iterator[tuple[int, list[tuple[Part, Tensor]]]]:
    """Yield each dim along which every part consists of the reference's slices, with the indices of these."""
    for dim in range(entry.whole.dim()):
        if entry.whole.shape[dim] < 2:
            continue
        matched = []
        for part in parts:
            if part.value.shape != part.expected.shape:
                return
            others = [torch.arange(entry.whole.shape[at]) if at == dim else i for at, i in enumerate(part.indices)]
            among = block(entry.whole, tuple(others))
            indices = matching_indices(part.value / part.factor, among, dim, TOLERANCE)
            if indices is None:
                break
            matched.append((part, indices))
        else:
            yield dim, matched


def runs_text(indices: Tensor, most: int = 3) -> str:
    """Return indices as ranges in their order: ``0:4, 8:12``."""
    numbers = indices.tolist()
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    shown = ", ".join(str(start) if end == start + 1 else f"{start}:{end}" for start, end in runs[:most])
    return f"{shown}, …" if len(runs) > most else shown
