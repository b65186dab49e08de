"""Ranks that should drop the same elements drop others, or those that should drop others the same; as in recomputation.

Whole batches and parts of them cannot draw the same, so dropout is off where values are compared, and what ranks draw
is compared with what they should have in common: replicas of one activation, forward and what is computed again for
backward, the shares that the reference and the ranks drop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared, Part, replicas
from dsexplore.numerics.numeric_records import Draw, Phase, RunRecord
from dsexplore.numerics.reasons.match import Match, is_near

FEWEST, LEAST_SHARE = 16, 0.01
"""Elements that a tensor has, and share of them that are dropped, from which on zeros are taken for draws."""
CHANGE = (
    "draw it with the same generator state on ranks that hold the same values (as in torch.distributed.tensor's random "
    "ops), and with others where the values differ"
)
CHANGE_AGAIN = (
    "restore the generator's state before computing again, as checkpoint does with preserve_rng_state=True (also a "
    "generator of one's own)"
)
CHANGE_SHARE = "give both the same probability of dropout, and put both in the same mode: model.train() or model.eval()"


@dataclass(frozen=True)
class DrawnOtherwise:
    """Where ranks draw what they should not."""

    phase: Phase
    module: str
    ranks: tuple[int, ...]
    match: Match


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for values that agree wherever neither the reference nor the rank has dropped them."""
    wrong = [part for part in parts if part.error > entry.allowed]
    if not wrong or not all(_differs_in_zeros(part, entry) for part in wrong):
        return None
    return Match("dropout", "other elements are dropped; those that are kept are right", CHANGE)


def _differs_in_zeros(part: Part, entry: Compared) -> bool:
    value, expected = part.value, part.expected
    if value.shape != expected.shape or value.numel() < FEWEST:
        return False
    zeros, of_reference = value == 0, expected == 0
    kept = ~(zeros | of_reference)
    shares = float(zeros.double().mean()), float(of_reference.double().mean())
    return min(shares) >= LEAST_SHARE and bool(kept.any()) and is_near(value[kept], expected[kept], entry)


def drawn_otherwise(comparison: Comparison) -> Iterator[tuple[int, DrawnOtherwise]]:
    """Yield steps with the places where ranks draw what they should not, those of forward first in each step."""
    if 0 in comparison.steps:
        yield from ((0, place) for place in _other_shares(comparison))
    for step in comparison.steps:
        yield from ((step, place) for place in _different_on_replicas(comparison, step))
        yield from ((step, place) for place in _same_on_parts(comparison, step))
        yield from ((step, place) for place in drawn_again(comparison, step))


def drawn_again(comparison: Comparison, step: int) -> Iterator[DrawnOtherwise]:
    """Yield the first module of which ranks draw in backward, computing it again, what they did not draw in forward."""
    ranks: dict[str, list[int]] = {}
    for record in comparison.draws:
        module = _first_drawn_again([draw for draw in record.draws if draw.step == step])
        if module is not None:
            ranks.setdefault(module, []).append(record.rank)
    for module, wrong in list(ranks.items())[:1]:
        looks = "what is computed again for backward drops other elements than forward did"
        yield DrawnOtherwise("backward", module, tuple(sorted(wrong)), Match("dropout", looks, CHANGE_AGAIN))


def _first_drawn_again(draws: Sequence[Draw]) -> str | None:
    """Return the module of the first draw in backward that is none of forward's; None where each is one of these."""
    forward = [draw for draw in draws if not draw.is_recomputed]
    again = [draw for draw in draws if draw.is_recomputed]
    for draw in again:
        like = [d for d in forward if d.function == draw.function and d.values.shape == draw.values.shape]
        like = [d for d in like if d.module == draw.module] or like
        if like and not any(torch.equal(d.values, draw.values) for d in like):
            left = [d for d in like if not any(_is_same(d, other) for other in again)]
            return draw.module or (left or like)[0].module
    return None


def _is_same(first: Draw, second: Draw) -> bool:
    return first.values.shape == second.values.shape and torch.equal(first.values, second.values)


def _draws_of(comparison: Comparison, entry: Compared) -> dict[tuple[int, int], list[Draw]]:
    """Return what each (rank, call) of an entry's module drew in forward, in order."""
    found: dict[tuple[int, int], list[Draw]] = {}
    for record in comparison.draws:
        for draw in record.draws:
            if (draw.step, draw.module) == (entry.record.step, entry.record.module) and not draw.is_recomputed:
                found.setdefault((record.rank, draw.call), []).append(draw)
    return found


def _different_on_replicas(comparison: Comparison, step: int) -> Iterator[DrawnOtherwise]:
    """Yield replicated outputs of dropout whose replicas dropped different elements."""
    for entry in comparison.of("forward", step) if comparison.draws else ():
        drawn = _draws_of(comparison, entry)
        for group in replicas(entry.parts) if drawn else ():
            here = {part.holder.rank: drawn.get((part.holder.rank, part.holder.call), []) for part in group}
            draws = {rank: of_rank for rank, of_rank in here.items() if of_rank}
            first = next(iter(draws.values()), [])
            if all(_are_same(first, of_rank) for of_rank in draws.values()):
                continue
            looks = "these ranks hold the same activation, and drop different elements of it"
            yield DrawnOtherwise("forward", entry.record.module, tuple(sorted(draws)), Match("dropout", looks, CHANGE))
            break


def _are_same(first: Sequence[Draw], second: Sequence[Draw]) -> bool:
    return len(first) == len(second) and all(map(_is_same, first, second))


def _same_on_parts(comparison: Comparison, step: int) -> Iterator[DrawnOtherwise]:
    """Yield outputs of dropout whose features or heads are cut, and of which ranks dropped the same elements.

    Ranks that differ in rows or positions may: these are other samples. DTensors draw so on CPUs alone.
    """
    for entry in comparison.of("forward", step) if comparison.draws else ():
        drawn = _draws_of(comparison, entry)
        for first, second in combinations(entry.parts, 2) if drawn else ():
            ours, others = (drawn.get((part.holder.rank, part.holder.call), []) for part in (first, second))
            if not _are_cut_by_features(first, second) or not ours or any(draw.is_dtensor for draw in ours):
                continue
            counts = [(draw.values.numel(), int(draw.values.count_nonzero())) for draw in ours]
            if _are_same(ours, others) and all(of >= FEWEST and 0 < some < of for of, some in counts):
                ranks = tuple(sorted({first.holder.rank, second.holder.rank}))
                looks = "these ranks hold different features, and drop the same elements of them"
                yield DrawnOtherwise("forward", entry.record.module, ranks, Match("dropout", looks, CHANGE))
                break


def _are_cut_by_features(first: Part, second: Part) -> bool:
    """Return True if two parts differ in features (the last dim) or heads (dim 1 of four) alone."""
    dims = len(first.indices)
    differing = [dim for dim in range(dims) if not torch.equal(first.indices[dim], second.indices[dim])]
    return len(differing) == 1 and (differing[0] == dims - 1 > 0 or (differing[0] == 1 and dims == 4))


def _other_shares(comparison: Comparison) -> Iterator[DrawnOtherwise]:
    """Yield modules in which the reference drops another share than ranks, as where one of them is in evaluation."""
    reference = comparison.reference
    if reference is None or not any(share for run in (reference, *comparison.ranks) for share in run.dropped.values()):
        return
    for entry in comparison.of("forward", 0):
        module = entry.record.module
        wrong = {}
        for rank in sorted({part.holder.rank for part in entry.parts}):
            shares = _shares(module, reference, comparison.ranks[rank])
            if shares is not None and abs(shares[0] - shares[1]) > 1e-9:
                wrong[rank] = shares
        if wrong:
            of_reference, of_rank = next(iter(wrong.values()))
            looks = f"the reference drops {of_reference:.3g} of it, and these ranks {of_rank:.3g}"
            yield DrawnOtherwise("forward", module, tuple(wrong), Match("dropout", looks, CHANGE_SHARE))


def _shares(module: str, reference: RunRecord, rank: RunRecord) -> tuple[float, float] | None:
    """Return which shares the reference and a rank drop in a module; None where they drop it in other ways.

    Where one calls no dropout there, nor anywhere in the module around it, it drops nothing.
    """
    around = module.rpartition(".")[0]
    shares = []
    functions = {name for run in (reference, rank) for path, name in run.dropped if path == module}
    if len(functions) != 1:
        return None
    for run in (reference, rank):
        here = [share for (path, _), share in run.dropped.items() if path == module]
        near = any(path == around or path.startswith(f"{around}." if around else "") for path, _ in run.dropped)
        if not here and near:
            return None
        shares.append(max(here, default=0.0))
    return shares[0], shares[1]
