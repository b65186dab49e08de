"""Each op derives the known values of its result from those of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from dsexplore._internal.worlds.fake.known_values import Element, element_of, is_unwritten, values_of
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")
EXPERTS, TOKENS = 4, 64


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with simulate(4, fake=True):
        yield


def choices() -> torch.Tensor:
    """Return indices of experts, each equally likely."""
    return torch.randn(TOKENS, EXPERTS).argmax(-1)


def mean_of(tensor: torch.Tensor) -> float:
    element = element_of(tensor)
    assert element is not None
    return element.mean


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda: choices() == 3, 1 / 4),
        (lambda: choices() != 3, 3 / 4),
        (lambda: choices() < 3, 3 / 4),
        (lambda: choices() == -100, 0.0),
        (lambda: choices() == choices(), 1 / 4),
        (lambda: (x := choices()) == x, 1.0),
        (lambda: choices()[:, None] == torch.arange(EXPERTS), 1 / 4),
        (lambda: (choices() == 1) | (choices() == 2), 1 / 4 + 3 / 4 * 1 / 4),
        (lambda: torch.logical_or(choices() == 1, choices() != 2), 1 - 3 / 4 * 1 / 4),
        (lambda: torch.logical_or(choices() == 1, torch.zeros(TOKENS, dtype=torch.bool)), 1 / 4),
        (lambda: torch.logical_xor(choices() == 1, choices() == 2), 2 * 1 / 4 * 3 / 4),
        (lambda: (choices() == 1) & (choices() == 2), 1 / 16),
        (lambda: ~(choices() == 1), 3 / 4),
        (lambda: (choices() == 1).logical_or_(choices() == 1), 1 / 4 + 3 / 4 * 1 / 4),
        (lambda: torch.randn(8) > 0, 1 / 2),
        (lambda: torch.full((8,), math.inf).isinf(), 1.0),
    ],
)
def test_shares_that_are_true(make: Callable[[], torch.Tensor], share: float) -> None:
    assert mean_of(make()) == pytest.approx(share)


@pytest.mark.parametrize(
    ("make", "mean"),
    [
        (lambda: torch.where(choices() == 1, 8.0, 0.0), 2.0),
        (lambda: torch.where(torch.zeros(3, dtype=torch.bool), math.inf, 3.0), 3.0),
        (lambda: torch.ones(TOKENS).masked_fill(choices() == 1, 5.0), 2.0),
        (lambda: torch.ones(TOKENS).masked_fill_(choices() == 1, 5.0), 2.0),
        (lambda: choices() // 2, 0.5),
        (lambda: choices() % 2, 0.5),
        (lambda: choices() & 1, 0.5),  # not of floating-point numbers
        (lambda: choices() << 1, 3.0),
        (lambda: torch.full((3,), 4.0).log2(), 2.0),  # an op without a rule
        (lambda: torch.full((3,), 3.0).square_().add(1, alpha=2), 11.0),
        (lambda: torch.full((3,), 0.25).rsqrt(), 2.0),
        (lambda: torch.div(torch.full((3,), 7.0), 2, rounding_mode="floor"), 3.0),
    ],
)
def test_pointwise_ops_are_run_on_typical_elements(make: Callable[[], torch.Tensor], mean: float) -> None:
    assert mean_of(make()) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.tensor([3, 1, 2]).sort(descending=True).values, [3, 2, 1]),
        (lambda: torch.tensor([3, 1, 2]).topk(2).indices, [0, 2]),
        (lambda: torch.tensor([3, 1, 2]).cumsum(0), [3, 4, 6]),
        (lambda: torch.tensor([1, 2]) @ torch.tensor([3, 4]), 11),
        (lambda: torch.tensor([0, 1, 1, 3]).bincount(), [1, 2, 0, 1]),
        (lambda: torch.tensor([3, 1, 3]).unique(), [1, 3]),
        (lambda: torch.tensor([3, 1, 2])[torch.tensor([True, False, True])], [3, 2]),
        (lambda: torch.tensor([3, 1]).repeat_interleave(torch.tensor([1, 2])), [3, 1, 1]),
        (lambda: torch.eye(2), [[1, 0], [0, 1]]),
        (lambda: torch.empty(3, dtype=torch.int64).copy_(torch.tensor([1, 2, 3])), [1, 2, 3]),
    ],
)
def test_ops_are_run_on_values_that_are_known(make: Callable[[], torch.Tensor], expected: object) -> None:
    values = values_of(make())
    assert values is not None
    assert values.tolist() == expected


def test_an_index_out_of_the_range_of_known_values_is_torchs_error() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        torch.arange(3)[torch.tensor([3])]


@pytest.mark.parametrize("of", [torch.Tensor.detach, lambda x: x.data, lambda x: x.view(-1), lambda x: x.T])
def test_a_write_through_an_alias_is_one_to_the_tensor(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    typical, known = torch.zeros(2, 2), torch.arange(4).view(2, 2)
    of(typical).fill_(4.0)
    of(known).add_(1)
    assert typical.tolist() == [[4, 4], [4, 4]]
    assert known.tolist() == [[1, 2], [3, 4]]
    of(known).random_(9)
    assert values_of(known) is None


def test_a_write_to_a_part_leaves_the_rest() -> None:
    known = torch.arange(5)
    known[1:3] = 7
    known[0] = torch.tensor(9)
    assert known.tolist() == [9, 7, 7, 3, 4]
    known[:2].random_(9)
    assert element_of(known) is None
    unwritten = torch.empty(4, dtype=torch.int64)
    unwritten[1] = torch.tensor(5)
    assert unwritten.tolist() == [0, 5, 0, 0]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.normal_(),
        lambda x: torch._foreach_mul_([x, x], [2.0, 3.0]) and torch._foreach_lerp_([x], [torch.randn(3)], 0.5),
        lambda x: torch.randn(3, out=x),
        lambda x: torch.matmul(torch.randn(3, 3), torch.randn(3), out=x),
    ],
)
def test_what_any_op_writes_to_is_forgotten(write: Callable[[torch.Tensor], object]) -> None:
    for tensor in (torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]), torch.empty(3)):
        write(tensor)
        assert element_of(tensor) is None
        assert not is_unwritten(tensor)


def test_lists_of_known_numbers_are_counted_on() -> None:
    """An optimizer counts the steps of each parameter."""
    steps = [torch.tensor(1.0), torch.tensor(2.0)]
    torch._foreach_add_(steps, 1)
    assert [step.item() for step in steps] == [2.0, 3.0]


def test_whole_numbers_of_parts_sum_to_those_of_the_whole() -> None:
    counts = torch.bincount(choices(), minlength=6)
    assert element_of(counts) == Element(TOKENS / 6)
    assert sum(int(count) for count in counts) == sum(counts.tolist()) == TOKENS


def test_a_storage_of_another_size_is_another_memory() -> None:
    tensor = torch.arange(4)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(8 * 8)
    assert values_of(tensor) is None
