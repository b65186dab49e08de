"""Recognize rows that count differently than in the reference: padding, and ranks with unequal batches."""

from __future__ import annotations

from collections.abc import Sequence

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part, factor_between
from dsexplore._internal.numerics.reasons.factor import common_factor
from dsexplore._internal.numerics.reasons.match import Match, is_close, is_near

_WITHOUT_PADDING = "leave padding out of the loss and of the number that it is divided by, as with ignore_index"


def padding(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Return a match if padding has gradients that the reference does not have, or counts in a mean or in pooling."""
    if entry.phase == "forward":
        return _match_pooling(entry, comparison)
    if entry.phase == "backward":
        return _gradient_of_padding(parts, entry)
    if entry.phase not in ("gradient", "optimizer"):
        return None
    factor = common_factor(parts, entry)
    share = _share_of_rows(comparison, entry.record.step)
    if factor is None or share is None or not is_close(factor, share):
        return None
    return Match(
        "padding",
        f"it is {factor:.3g} of the reference's, the share of positions that are no padding",
        _WITHOUT_PADDING,
    )


def _gradient_of_padding(parts: Sequence[Part], entry: Compared) -> Match | None:
    """Return a match if the gradients differ only in rows where the reference has none, up to a factor."""
    count = 0
    for part in parts:
        if part.value.shape != part.expected.shape or part.value.dim() < 2:
            return None
        value, expected = part.value.flatten(0, -2), part.expected.flatten(0, -2)
        is_padding = ~expected.any(dim=-1)
        count += int((value[is_padding].any(dim=-1)).sum())
        factor = factor_between(value[~is_padding], expected[~is_padding])
        if not is_near(value[~is_padding], expected[~is_padding] * factor, entry, factor):
            return None
    if not count:
        return None
    return Match("padding", f"{count} rows have a gradient that the reference leaves out", _WITHOUT_PADDING)


def _match_pooling(entry: Compared, comparison: Comparison) -> Match | None:
    """Return a match if an output without positions depends on ends of sequences on which the reference does not.

    The gradient of the pooled output at a position shows whether the result depends on that position.
    """
    for source in comparison.of("backward", entry.record.step):
        if source.record.module not in (entry.record.sources or ()) or source.whole.dim() != 3:
            continue
        if entry.whole.dim() >= 3 or len(entry.whole) != len(source.whole):
            continue
        counts = [_count_of_ends(part) for part in source.parts]
        if any(count is None for count in counts) or not any(counts):
            continue
        looks = (
            f"it takes {sum(filter(None, counts))} positions in, at ends of sequences, that the reference leaves out"
        )
        return Match("padding", looks, "give each rank the mask or the lengths of its rows, and pool over these alone")
    return None


def _count_of_ends(part: Part) -> int | None:
    """Return the number of positions with a gradient outside the range of those in the reference.

    None if the range is not at one end of the sequence, if less than half of its positions have a gradient in the
    reference, or none in the part. A result that depends on one position only, such as the last, shows no padding.
    """
    if part.value.shape != part.expected.shape:
        return None
    count = longest = 0
    for value, expected in zip(part.value.any(-1), part.expected.any(-1), strict=True):
        places = expected.nonzero().flatten()
        longest = max(longest, len(places))
        if not len(places):
            return None
        first, last = int(places[0]), int(places[-1]) + 1
        inside = value[first:last]
        if (first and last < len(expected)) or 2 * len(places) < last - first or not bool(inside.any()):
            return None
        count += int(value.sum()) - int(inside.sum())
    return count if longest > 1 else None


def _share_of_rows(comparison: Comparison, step: int) -> float | None:
    """Return the share of rows of the model's output that have a gradient; None if all or none have one."""
    outputs = [entry for entry in comparison.of("backward", step) if entry.whole.dim() > 1]
    if not outputs:
        return None
    rows = outputs[0].whole.flatten(0, -2).any(dim=-1)
    share = float(rows.double().mean())
    return share if 0 < share < 1 else None


_BY_SHARE = (
    "weight each rank by its share: divide the sum of all losses by the number of elements on all ranks (all_reduced)"
)


def unequal_batches(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Return a match if each rank's gradients are right up to a factor, one over its number of rows."""
    if entry.phase != "backward" or any(part.error > entry.allowed * abs(part.factor) for part in parts):
        return None
    shown = [part for part in parts if part.expected.numel() and bool(part.expected.any())]
    if len(shown) < 2 or all(is_close(part.factor, shown[0].factor) for part in shown):
        return None
    counts = [_rows_with_gradient(part) for part in shown]
    products = [part.factor * count for part, count in zip(shown, counts, strict=True)]
    if not all(is_close(product, products[0]) for product in products):
        return None
    sizes = ", ".join(f"rank {part.holder.rank} {count}" for part, count in zip(shown, counts, strict=True))
    looks = f"ranks have means over different numbers of rows ({sizes}), weighted alike"
    return Match("unequal batches", looks, _BY_SHARE)


def _rows_with_gradient(part: Part) -> int:
    """Return the number of rows of a part, along its last dim, that have a gradient in the reference."""
    rows = part.expected.flatten(0, -2) if part.expected.dim() > 1 else part.expected.unsqueeze(-1)
    return int(rows.any(dim=-1).sum())
