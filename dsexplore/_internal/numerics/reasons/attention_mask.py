"""Recognize attention whose mask hides too much or too little: only some positions, or some sequences, are right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.reasons.match import LENIENCE, Match, runs_text


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim, other than that of features, with some positions that are right on all ranks, and wrong ones."""
    if entry.phase != "forward" or entry.whole.dim() < 3:
        return None
    for dim in range(1, entry.whole.dim() - 1):
        wrong = _wrong_positions(parts, entry, dim)
        if wrong is None or not bool(wrong.any()) or bool(wrong.all()):
            continue
        differs_within_a_rank = any(0 < int(wrong[part.indices[dim]].sum()) < len(part.indices[dim]) for part in parts)
        if not differs_within_a_rank and not _is_in_attention(entry.record.module):
            continue
        right = (~wrong).nonzero().flatten()
        if right.tolist() == [0]:
            continue  # under a causal mask the first position attends only to itself, whatever query and key are
        looks = f"only positions {runs_text(right)} of dim {dim} are right, of {entry.whole.shape[dim]}"
        change = (
            "compare each rank's mask, and its positions, with its rows and columns of the whole: causal order counts "
            "from the start of the sequence, not of a rank's chunk"
        )
        return Match("mask", looks, change)
    return _match_rows(parts, entry)


def _match_rows(parts: Sequence[Part], entry: Compared) -> Match | None:
    """Look for attention that is right only in some sequences of the batch, because of a wrong mask of padding."""
    wrong = _wrong_positions(parts, entry, 0) if _is_in_attention(entry.record.module) else None
    if wrong is None or not bool(wrong.any()) or bool(wrong.all()):
        return None
    right = (~wrong).nonzero().flatten()
    looks = f"only sequences {runs_text(right)} of {entry.whole.shape[0]} are right"
    change = (
        "compare each rank's mask of padding with its rows of the batch: cut the mask as the batch is cut, and give it "
        "to every layer"
    )
    return Match("mask", looks, change)


def _is_in_attention(module: str) -> bool:
    """Return True if a part of the module's path is a usual name of attention."""
    return any(part.lower().startswith(("att", "self_att", "mha", "mixer")) for part in module.split("."))


def _wrong_positions(parts: Sequence[Part], entry: Compared, dim: int) -> Tensor | None:
    """Return a mask of the positions of a dim that are wrong on any rank; None if shapes differ."""
    wrong = torch.zeros(entry.whole.shape[dim], dtype=torch.bool)
    for part in parts:
        if part.value.shape != part.expected.shape:
            return None
        rows = (part.value - part.expected).movedim(dim, 0).flatten(1)
        error = torch.linalg.vector_norm(rows, dim=1) / max(rows.shape[1], 1) ** 0.5
        wrong[part.indices[dim]] |= error > LENIENCE * entry.allowed
    return wrong
