"""Recognize values of another step: gradients that were not zeroed, parameters that some ranks have not updated."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, factor_between
from dsexplore._internal.numerics.part_layouts import block
from dsexplore._internal.numerics.reasons.match import Match, is_close, is_near
from dsexplore._internal.units import format_ranks


def stale_gradients(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for the reference's gradient of this step plus a share of those of the steps before.

    The share is 1 if no rank zeroes gradients, and 1/2 if one of two ranks with averaged gradients does not.
    """
    if entry.phase != "gradient" or not entry.record.step:
        return None
    earlier, first = entry.whole.new_zeros(entry.whole.shape), entry.record.step
    while first:
        first -= 1
        before = [part for part in comparison.of("gradient", first) if part.record.name == entry.record.name]
        if not before or before[0].whole.shape != earlier.shape:
            return None
        earlier = earlier + before[0].whole
        share = _stale_share(parts, earlier, entry)
        if share is not None:
            of = "" if is_close(share, 1) else f"{share:.3g} of "
            steps = f"steps {first} to {entry.record.step - 1}" if first < entry.record.step - 1 else f"step {first}"
            looks = f"it is the reference's and {of}that of {steps}"
            change = "call optimizer.zero_grad() in each step, after optimizer.step(), for all parameters on all ranks"
            return Match("stale gradients", looks, change)
    return None


def _stale_share(parts: Sequence[Part], earlier: Tensor, entry: Compared) -> float | None:
    """Return the share of the earlier gradients that all parts contain beside the right ones; None if it differs."""
    shares = []
    for part in parts:
        if part.value.shape != part.expected.shape:
            return None
        stale = block(earlier, part.indices)
        if not bool(stale.any()):
            continue
        share = factor_between(part.value - part.expected, stale)
        if not share > 0 or not is_near(part.value, part.expected + share * stale, entry):
            return None
        shares.append(share)
    return shares[0] if shares and all(is_close(share, shares[0]) for share in shares) else None


def unsynchronized(comparison: Comparison) -> dict[str, tuple[int, ...]]:
    """Return {parameter: ranks that have other values than the first rank before the first step}."""
    ranks_of_parameter: dict[str, tuple[int, ...]] = {}
    for record in comparison.ranks:
        for name in record.unsynchronized:
            ranks_of_parameter[name] = (*ranks_of_parameter.get(name, ()), record.rank)
    return ranks_of_parameter


def match_of(names: dict[str, tuple[int, ...]]) -> Match:
    """Return the match for parameters that are not synchronized, given {parameter: ranks with other values}."""
    first = next(iter(names))
    which = first if len(names) == 1 else f"{len(names)} parameters, {first} among them,"
    verb = "has" if len(names) == 1 else "have"
    return Match(
        "stale parameters",
        f"{which} {verb} other values than on rank 0 before the first step",
        "broadcast parameters and buffers from one rank before training, or seed all ranks alike where they are made",
    )


def stale_parameters(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a parameter that some ranks update right and others not at all, because they do not receive it."""
    if entry.phase != "optimizer" or not entry.scale:
        return None
    stale = tuple(
        sorted({part.holder.rank for part in parts if not bool(part.value.any()) and bool(part.expected.any())})
    )
    wrong = {part.holder.rank for part in parts if part.error > entry.allowed}
    if not stale or wrong != set(stale) or len(wrong) == len({part.holder.rank for part in parts}):
        return None
    first = next(part.holder.rank for part in parts if part.holder.rank not in stale)
    looks = f"the optimizer does not change it on {format_ranks(stale)}, and does on rank {first}"
    return Match("stale parameters", looks, "broadcast or all_gather what each rank has updated after optimizer.step()")
