"""A fused layer of query, key and value whose rows do not go with the columns of the next layer, and those that do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.numeric_records import DTensorPlace, Phase, RunRecord
from dsexplore._internal.numerics.reasons.fused_parts import rule
from dsexplore._internal.numerics.reasons.match import Match
from dsexplore._internal.placement_text import read
from tests.numerics.compared import comparison_of, entry_of, values

WIDTH, RANKS = 16, 2
QKV, WO = "attention.qkv", "attention.wo"


def entry(phase: Phase, module: str, name: str, whole: Tensor, parts: list[Tensor]) -> Compared:
    compared = entry_of(whole, parts, "tp=2", phase)
    return replace(compared, record=replace(compared.record, module=module, name=name))


def columns(rank: int) -> Tensor:
    return torch.arange(WIDTH).chunk(RANKS)[rank]


def explained(rows: list[Tensor], phase: Phase = "forward", *, is_dtensor: bool = False) -> Match | None:
    """Return what the rule says where ranks hold these rows of a layer before one whose columns are cut in chunks."""
    whole = values(4, WIDTH)
    wrong = entry(phase, WO, "output", whole, [values(4, WIDTH, seed=rank + 1) for rank in range(RANKS)])
    size = max(int(index.max()) for index in rows) + 1
    weights = [
        entry("optimizer", module, f"{module}.weight", weight, [weight] * RANKS)
        for module, weight in ((QKV, values(size, WIDTH)), (WO, values(WIDTH, WIDTH)))
    ]
    comparison: Comparison = comparison_of("tp=2", wrong, *weights)
    for rank in range(RANKS):
        record = RunRecord(rank=rank)
        record.rows[f"{WO}.weight"] = 1, columns(rank)
        if is_dtensor:
            place = DTensorPlace((size, WIDTH), (read(torch.distributed.tensor.Shard(0)),), torch.arange(RANKS))
            record.places[f"{QKV}.weight"] = place
        else:
            record.rows[f"{QKV}.weight"] = 0, rows[rank]
        comparison.ranks.append(record)
    return rule(wrong.parts, wrong, comparison)


def of_each_part(rank: int, count: int = 3) -> Tensor:
    return torch.cat([columns(rank) + part * WIDTH for part in range(count)])


@pytest.mark.parametrize("is_dtensor", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_rows_that_are_cut_as_one_do_not_go_with_the_columns(count: int, is_dtensor: bool) -> None:
    match = explained(list(torch.arange(count * WIDTH).chunk(RANKS)), is_dtensor=is_dtensor)
    assert match is not None
    assert match.reason == "permutation"
    assert f"rank 0 holds rows 0:{count * 8} of {QKV}.weight, which has {count} times as many" in match.looks_like
    assert match.change == f"cut each of the {count} parts of {QKV}.weight as those columns are cut"


def test_rows_of_each_part_in_any_order_go_with_the_columns() -> None:
    assert explained([of_each_part(rank) for rank in range(RANKS)]) is None
    assert explained([of_each_part(rank).flip(0) for rank in range(RANKS)]) is None


def test_rows_of_another_rank_do_not_go_with_the_columns() -> None:
    match = explained([columns(1), columns(0)])
    assert match is not None
    assert match.looks_like.startswith(f"rank 0 holds rows 8:16 of {QKV}.weight, which has as many")
    assert explained([columns(0), columns(1)]) is None


def test_grouped_keys_go_with_the_share_of_columns() -> None:
    halves = list(torch.arange(WIDTH // 2).chunk(RANKS))
    assert explained(halves) is None
    match = explained(halves[::-1])
    assert match is not None
    assert "1/2 as many" in match.looks_like


def test_only_outputs_are_explained() -> None:
    assert explained(list(torch.arange(3 * WIDTH).chunk(RANKS)), "backward") is None
