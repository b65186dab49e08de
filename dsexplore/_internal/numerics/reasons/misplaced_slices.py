"""Recognize right slices of the reference at wrong positions of a dim: in another order, or shifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.initial_weights import matching_indices
from dsexplore._internal.numerics.part_layouts import block
from dsexplore._internal.numerics.reasons.match import Match, is_near, runs_text

_TOLERANCE = 1e-8


def _matched_slices(parts: Sequence[Part], entry: Compared) -> Iterator[tuple[int, list[tuple[Part, Tensor]]]]:
    """Yield each dim along which all parts consist of slices of the reference, with the parts and their indices."""
    for dim in range(entry.whole.dim()):
        if entry.whole.shape[dim] < 2:
            continue
        matched = []
        for part in parts:
            if part.value.shape != part.expected.shape:
                return
            others = [torch.arange(entry.whole.shape[at]) if at == dim else i for at, i in enumerate(part.indices)]
            among = block(entry.whole, tuple(others))
            value = part.value / part.factor
            indices = matching_indices(value, among, dim, _TOLERANCE)
            if indices is None:
                indices = _among_same_slices(value, among, dim, part.indices[dim])
            if indices is None:
                break
            matched.append((part, indices))
        else:
            yield dim, matched


def _among_same_slices(part: Tensor, whole: Tensor, dim: int, places: Tensor) -> Tensor | None:
    """Return the index in a whole, with several equal slices, of each slice of a part.

    A slice at its right place keeps that index. The others get the first unused index of an equal slice.

    Args:
        part: tensor whose slices along `dim` are searched.
        whole: tensor in which they are searched.
        dim: dim of the slices.
        places: indices where the part belongs.

    Returns:
        None if a slice is missing or too frequent. None, too, if fewer than two different slices have moved, or one of
        them is zero, because they are more likely masked.
    """
    rows, of = (tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1).double() for tensor in (part, whole))
    if not rows.numel() or rows.shape[1] != of.shape[1] or len(places) != len(rows):
        return None
    seeded = torch.randn(of.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spacing = _TOLERANCE * max(float(of.norm(dim=1).max()) * float(seeded.norm()), 1e-300)
    keys = of @ seeded
    ordered, order = keys.sort()
    kinds = torch.empty_like(order)
    kinds[order] = torch.cat((order.new_zeros(1), (ordered.diff() > 2 * spacing).cumsum(0)))
    wanted = rows @ seeded
    near = torch.searchsorted(ordered, wanted).clamp(max=len(of) - 1)
    before = (near - 1).clamp(min=0)
    near = torch.where((ordered[before] - wanted).abs() < (ordered[near] - wanted).abs(), before, near)
    if bool(((ordered[near] - wanted).abs() > spacing).any()):
        return None
    kind = kinds[order[near]]
    stays = kinds[places] == kind
    if not bool(stays.all()) and (len(kind[~stays].unique()) < 2 or not bool(rows[~stays].any(1).all())):
        return None
    used = set(places[stays].tolist())
    free: dict[int, list[int]] = {}
    for at in range(len(of) - 1, -1, -1):
        if at not in used:
            free.setdefault(int(kinds[at]), []).append(at)
    sources = places.clone()
    for at in (~stays).nonzero().flatten().tolist():
        left = free.get(int(kind[at]))
        if not left:
            return None
        sources[at] = left.pop()
    return sources


def permutation(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which the ranks hold the reference's slices in another order."""
    for dim, matched in _matched_slices(parts, entry):
        misplaced = [(part, indices) for part, indices in matched if not torch.equal(indices, part.indices[dim])]
        if not misplaced:
            continue
        part, indices = misplaced[0]
        is_last = dim == entry.whole.dim() - 1
        what = "columns" if is_last else "rows"
        looks = (
            f"the {what} are right in another order: rank {part.holder.rank} has {runs_text(indices)} of dim {dim} "
            f"where {runs_text(part.indices[dim])} belongs"
        )
        change = (
            "cut each of the parts that are joined in this dim (as query, key and value), then join what a rank has "
            "of each, or cut the weight that it is multiplied with in the same order"
            if is_last
            else "cut the dim in the order in which it is joined later"
        )
        return Match("permutation", looks, change)
    return None


_FARTHEST = 3
"""Largest number of positions by which a sequence may be shifted within a rank."""


def shift(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a dim along which ranks hold consecutive slices of the reference from another position."""
    for dim, matched in _matched_slices(parts, entry):
        if dim == entry.whole.dim() - 1 and dim:
            continue  # features have no positions
        misplaced = [(part, indices) for part, indices in matched if not torch.equal(indices, part.indices[dim])]
        if misplaced and all(_is_run(indices, entry.whole.shape[dim]) for _, indices in misplaced):
            part, indices = misplaced[0]
            return _shift_match(
                f"rank {part.holder.rank} has positions {runs_text(indices)} of dim {dim} where "
                f"{runs_text(part.indices[dim])} belong"
            )
    if (looks := _describe_sources(entry, comparison)) is not None:
        return _shift_match(looks)
    for dim in range(entry.whole.dim() - 1):
        for by in [sign * far for far in range(1, _FARTHEST + 1) for sign in (1, -1)]:
            if all(_is_shifted(part, dim, by, entry) for part in parts):
                return _shift_match(f"positions of dim {dim} are shifted by {by}")
    return None


def _describe_sources(entry: Compared, comparison: Comparison) -> str | None:
    """Return a clause on two right outputs from which this one is computed, if a rank has other positions of each.

    Worked example: tokens are divided in pairs of a head and a tail chunk, and positions are not. Rank 0 of two has
    rows 0:2 and 6:8 of the embedding's output, and rows 0:4 of the positions' output. Dims are counted from the last
    one, as in broadcasting.
    """
    if entry.phase != "forward" or entry.whole.dim() < 2:
        return None
    sources = [
        source
        for source in comparison.of("forward", entry.record.step)
        if source.record.module in (entry.record.sources or ()) and source.is_right and source.whole.dim() > 1
    ]
    for number, first in enumerate(sources):
        for second in sources[number + 1 :]:
            for back in range(2, min(first.whole.dim(), second.whole.dim(), entry.whole.dim()) + 1):
                if not first.whole.shape[-back] == second.whole.shape[-back] == entry.whole.shape[-back]:
                    continue
                of_first, of_second = _positions(first, back), _positions(second, back)
                for rank in sorted(of_first.keys() & of_second.keys()):
                    some, others = of_first[rank], of_second[rank]
                    if len(some) == len(others) and not torch.equal(some, others):
                        return (
                            f"rank {rank} has positions {runs_text(some)} of the output of {first.record.module}, and "
                            f"positions {runs_text(others)} of that of {second.record.module}"
                        )
    return None


def _positions(entry: Compared, back: int) -> dict[int, Tensor]:
    """Return {rank: its indices of the dim `back` from the end, of all calls}."""
    by_rank: dict[int, list[Tensor]] = {}
    for part in entry.parts:
        by_rank.setdefault(part.holder.rank, []).append(part.indices[-back])
    return {rank: torch.cat(indices) for rank, indices in by_rank.items()}


def _shift_match(looks_like: str) -> Match:
    change = (
        "give each rank its own chunk: of a batch by a DistributedSampler with its rank; of a sequence add rank × "
        "length of a chunk to positions that count from 0"
    )
    return Match("shift", looks_like, change)


def _is_run(indices: Tensor, size: int) -> bool:
    """Return True if indices are consecutive, modulo the size of the dim."""
    return bool((indices.diff() % size == 1).all())


def _is_shifted(part: Part, dim: int, by: int, entry: Compared) -> bool:
    """Return True if a part has the expected values, shifted by `by` positions of a dim."""
    size = part.value.shape[dim]
    if size <= 2 * abs(by) or part.value.shape != part.expected.shape:
        return False
    length = size - abs(by)
    value = part.value.narrow(dim, max(by, 0), length)
    expected = part.expected.narrow(dim, max(-by, 0), length)
    return is_near(value, expected * part.factor, entry, part.factor) and bool(expected.any())
