"""Recognize wrong dropout: masks that differ and should be equal, or are equal and should differ.

A rank with part of a batch cannot draw the mask of the whole batch, so dropout is off while values are compared. A run
of its own compares masks: those of replicas of one activation, of forward and its recomputation in backward, and the
probability of dropout in the reference and on the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, replicas
from dsexplore._internal.numerics.numeric_records import Draw, Phase, RunRecord
from dsexplore._internal.numerics.reasons.match import Match, is_near

FEWEST, LEAST_SHARE = 16, 0.01
"""Zeros count as dropped elements in tensors of at least this many elements, and if at least this share is zero."""
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
class WrongDraw:
    """A module in which ranks draw the wrong mask."""

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
    """Return True if a part agrees with the reference where neither is zero, and both have a share of zeros."""
    value, expected = part.value, part.expected
    if value.shape != expected.shape or value.numel() < FEWEST:
        return False
    is_zero, is_zero_in_reference = value == 0, expected == 0
    mask = ~(is_zero | is_zero_in_reference)
    share = min(float(is_zero.double().mean()), float(is_zero_in_reference.double().mean()))
    return share >= LEAST_SHARE and bool(mask.any()) and is_near(value[mask], expected[mask], entry)


def wrong_draws(comparison: Comparison) -> Iterator[tuple[int, WrongDraw]]:
    """Yield (step, wrong draw); in each step, those of forward come first."""
    if 0 in comparison.steps:
        yield from ((0, draw) for draw in _different_probabilities(comparison))
    for step in comparison.steps:
        yield from ((step, draw) for draw in _different_masks_on_replicas(comparison, step))
        yield from ((step, draw) for draw in _equal_masks_on_parts(comparison, step))
        yield from ((step, draw) for draw in wrong_recomputation(comparison, step))


def wrong_recomputation(comparison: Comparison, step: int) -> Iterator[WrongDraw]:
    """Yield the first module whose recomputation in backward draws another mask than its forward did."""
    ranks: dict[str, list[int]] = {}
    for record in comparison.draws:
        module = _wrongly_recomputed([draw for draw in record.draws if draw.step == step])
        if module is not None:
            ranks.setdefault(module, []).append(record.rank)
    for module, wrong in list(ranks.items())[:1]:
        looks = "what is computed again for backward drops other elements than forward did"
        yield WrongDraw(
            phase="backward", module=module, ranks=tuple(sorted(wrong)), match=Match("dropout", looks, CHANGE_AGAIN)
        )


def _wrongly_recomputed(draws: Sequence[Draw]) -> str | None:
    """Return the module of the first draw in backward that forward did not make; None if forward made all of them."""
    forward = [draw for draw in draws if not draw.is_recomputed]
    again = [draw for draw in draws if draw.is_recomputed]
    for draw in again:
        candidates = [d for d in forward if d.function == draw.function and d.values.shape == draw.values.shape]
        candidates = [d for d in candidates if d.module == draw.module] or candidates
        if candidates and not any(torch.equal(d.values, draw.values) for d in candidates):
            not_repeated = [d for d in candidates if not any(_is_same(d, other) for other in again)]
            return draw.module or (not_repeated or candidates)[0].module
    return None


def _is_same(first: Draw, second: Draw) -> bool:
    return first.values.shape == second.values.shape and torch.equal(first.values, second.values)


def _draws_of(comparison: Comparison, entry: Compared) -> dict[tuple[int, int], list[Draw]]:
    """Return {(rank, call): draws in forward of an entry's module, in order}."""
    draws: dict[tuple[int, int], list[Draw]] = {}
    for record in comparison.draws:
        for draw in record.draws:
            if (draw.step, draw.module) == (entry.record.step, entry.record.module) and not draw.is_recomputed:
                draws.setdefault((record.rank, draw.call), []).append(draw)
    return draws


def _different_masks_on_replicas(comparison: Comparison, step: int) -> Iterator[WrongDraw]:
    """Yield replicated outputs of dropout whose replicas dropped different elements."""
    if not comparison.draws:
        return
    for entry in comparison.of("forward", step):
        draws_of_calls = _draws_of(comparison, entry)
        if not draws_of_calls:
            continue
        for group in replicas(entry.parts):
            draws: dict[int, list[Draw]] = {}
            for part in group:
                if of_call := draws_of_calls.get((part.holder.rank, part.holder.call)):
                    draws[part.holder.rank] = of_call
            first = next(iter(draws.values()), [])
            if all(_are_same(first, of_rank) for of_rank in draws.values()):
                continue
            looks = "these ranks hold the same activation, and drop different elements of it"
            yield WrongDraw(
                phase="forward",
                module=entry.record.module,
                ranks=tuple(sorted(draws)),
                match=Match("dropout", looks, CHANGE),
            )
            break


def _are_same(first: Sequence[Draw], second: Sequence[Draw]) -> bool:
    return len(first) == len(second) and all(map(_is_same, first, second))


def _equal_masks_on_parts(comparison: Comparison, step: int) -> Iterator[WrongDraw]:
    """Yield outputs of dropout that are sharded by features or heads and whose shards have equal masks.

    Shards of other rows or positions may have equal masks. DTensors are skipped: on CPUs they draw equal masks.
    """
    if not comparison.draws:
        return
    for entry in comparison.of("forward", step):
        draws_of_calls = _draws_of(comparison, entry)
        if not draws_of_calls:
            continue
        for first, second in combinations(entry.parts, 2):
            draws = draws_of_calls.get((first.holder.rank, first.holder.call), [])
            other_draws = draws_of_calls.get((second.holder.rank, second.holder.call), [])
            if not _are_sharded_by_features(first, second) or not draws or any(draw.is_dtensor for draw in draws):
                continue
            counts = [(draw.values.numel(), int(draw.values.count_nonzero())) for draw in draws]
            drops_some = all(size >= FEWEST and 0 < dropped < size for size, dropped in counts)
            if _are_same(draws, other_draws) and drops_some:
                ranks = tuple(sorted({first.holder.rank, second.holder.rank}))
                looks = "these ranks hold different features, and drop the same elements of them"
                yield WrongDraw(
                    phase="forward", module=entry.record.module, ranks=ranks, match=Match("dropout", looks, CHANGE)
                )
                break


def _are_sharded_by_features(first: Part, second: Part) -> bool:
    """Return True if two parts differ only in features (the last dim), or only in heads (dim 1 of four)."""
    dims = len(first.indices)
    differing = [dim for dim in range(dims) if not torch.equal(first.indices[dim], second.indices[dim])]
    is_by_features = dims > 1 and differing == [dims - 1]
    is_by_heads = dims == 4 and differing == [1]
    return is_by_features or is_by_heads


def _different_probabilities(comparison: Comparison) -> Iterator[WrongDraw]:
    """Yield modules with another probability of dropout in the reference than on ranks, such as one in eval mode."""
    reference = comparison.reference
    if reference is None or not any(share for run in (reference, *comparison.ranks) for share in run.dropped.values()):
        return
    for entry in comparison.of("forward", 0):
        module = entry.record.module
        wrong = {}
        for rank in sorted({part.holder.rank for part in entry.parts}):
            shares = _probabilities(module, reference, comparison.ranks[rank])
            if shares is not None and abs(shares[0] - shares[1]) > 1e-9:
                wrong[rank] = shares
        if wrong:
            of_reference, of_rank = next(iter(wrong.values()))
            looks = f"the reference drops {of_reference:.3g} of it, and these ranks {of_rank:.3g}"
            yield WrongDraw(
                phase="forward", module=module, ranks=tuple(wrong), match=Match("dropout", looks, CHANGE_SHARE)
            )


def _probabilities(module: str, reference: RunRecord, rank: RunRecord) -> tuple[float, float] | None:
    """Return the probabilities of dropout of the reference and a rank in a module; None if they cannot be compared.

    A run without dropout in the module has probability 0, unless it drops elsewhere in the module's parent, where the
    other run does not: the dropout may have moved there.
    """
    functions = {name for run in (reference, rank) for path, name in run.dropped if path == module}
    if len(functions) != 1:
        return None
    paths = [{path for path, _ in run.dropped} for run in (reference, rank)]
    for here, others in (paths, paths[::-1]):
        if module not in here and any(_has_same_parent(module, path) for path in here - others):
            return None
    of_reference, of_rank = (
        max((share for (path, _), share in run.dropped.items() if path == module), default=0.0)
        for run in (reference, rank)
    )
    return of_reference, of_rank


def _has_same_parent(module: str, path: str) -> bool:
    """Return True if a path is the parent of a module, or inside the parent."""
    parent = module.rpartition(".")[0]
    return not parent or path == parent or path.startswith(f"{parent}.")
