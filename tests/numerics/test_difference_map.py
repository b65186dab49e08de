"""`DifferenceMap`: cells are where ranks differ, outlines are what they hold."""

from __future__ import annotations

import math

import torch

from dsexplore._internal.numerics.difference_map import MOST_COLUMNS, MOST_ROWS, DifferenceMap, difference_map
from tests.numerics.compared import entry_of, values


def shown(whole: torch.Tensor, parts: list[torch.Tensor], mesh: str) -> DifferenceMap:
    found = difference_map(entry_of(whole, parts, mesh))
    assert found is not None
    return found


def test_a_wrong_element_is_in_its_cell_of_its_rank() -> None:
    whole = values(8, 6)
    changed = whole.clone()
    changed[5, 2] += 3.0
    found = shown(whole, list(changed.chunk(2)), "dp=2")
    wrong = [
        (row, at) for row, errors in enumerate(found.errors) for at, one in enumerate(errors) if one > found.allowed
    ]
    assert (found.dims, found.shape, wrong) == ((0, 1), (8, 6), [(5, 2)])
    assert [(block.rows, block.columns, block.ranks) for block in found.blocks] == [
        ((0.0, 4.0), (0.0, 6.0), (0,)),
        ((4.0, 8.0), (0.0, 6.0), (1,)),
    ]


def test_the_dims_that_ranks_cut_are_shown() -> None:
    whole = values(4, 8, 6)
    found = shown(whole, [part * 2 for part in whole.chunk(2, 1)], "cp=2")
    assert found.dims == (1, 2)
    assert len(found.errors) == 8
    assert all(one > 0 for row in found.errors for one in row)


def test_replicas_share_an_outline_and_large_tensors_are_binned() -> None:
    whole = values(200, 500)
    changed = whole.clone()
    changed[199, 499] = 9.0
    found = shown(whole, [whole, changed], "tp=2")
    assert (len(found.errors), len(found.errors[0])) == (MOST_ROWS, MOST_COLUMNS)
    assert [block.ranks for block in found.blocks] == [(0, 1)]
    assert found.errors[-1][-1] > 1
    assert max(found.errors[0]) <= found.allowed


def test_a_vector_is_a_row_and_a_nan_is_infinitely_wrong() -> None:
    whole = values(5)
    changed = whole.clone()
    changed[1] = math.nan
    found = shown(whole, [changed], "dp=1")
    assert (found.dims, len(found.errors)) == ((-1, 0), 1)
    assert found.errors[0][1] == math.inf


def test_a_number_has_no_map() -> None:
    assert difference_map(entry_of(torch.tensor(1.0), [torch.tensor(2.0)], "dp=1")) is None
