"""`DrawMode` reports the random draws of a program, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dsexplore._internal.numerics.draw_mode import DrawMode

ONES = torch.ones(4, 32)
QUERY = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))


def reported(program: Callable[[], object]) -> list[tuple[str, Tensor]]:
    draws: list[tuple[str, Tensor]] = []
    torch.manual_seed(0)
    mode = DrawMode()
    mode.report = lambda function, values: draws.append((function, values.clone()))
    with mode:
        program()
    return draws


@pytest.mark.parametrize(
    "program",
    [
        lambda: F.dropout(ONES, 0.5, training=False),
        lambda: F.dropout(ONES, 0.0),
        lambda: F.alpha_dropout(ONES, 0.5),  # its training is False unless it is given
        lambda: torch.nn.Dropout(0.5).eval()(ONES),
        lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY),
        lambda: F.relu(ONES) + torch.zeros(4, 32),
        lambda: torch.arange(4).float().mean(),
    ],
)
def test_what_draws_nothing_is_not_reported(program: Callable[[], object]) -> None:
    before = torch.manual_seed(0).get_state()
    assert reported(program) == []
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("program", "function"),
    [
        (lambda: F.dropout(ONES, 0.5), "dropout"),
        (lambda: F.dropout(ONES.clone(), 0.5, inplace=True), "dropout"),
        (lambda: F.alpha_dropout(ONES, 0.5, training=True), "alpha_dropout"),
        (lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=0.5), "scaled_dot_product_attention"),
        (lambda: torch.rand(3), "rand"),
        (lambda: torch.randn_like(ONES), "randn_like"),
        (lambda: torch.empty(3).uniform_(), "uniform_"),
        (lambda: torch.bernoulli(ONES / 2), "bernoulli"),
    ],
)
def test_what_draws_is_reported_once_and_the_same_with_the_same_seed(
    program: Callable[[], object], function: str
) -> None:
    first, again = reported(program), reported(program)
    assert [name for name, _ in first] == [function]
    assert torch.equal(first[0][1], again[0][1])


def test_of_dropout_the_elements_that_it_set_to_zero_are_reported() -> None:
    given = ONES.clone()
    given[:, 0] = 0
    returned: list[Tensor] = []
    ((_, dropped),) = reported(lambda: returned.append(F.dropout(given, 0.5)))
    assert dropped.dtype == torch.bool
    assert not dropped[:, 0].any()  # were zero before
    assert torch.equal(dropped[:, 1:], returned[0][:, 1:] == 0)


def test_attention_that_drops_reports_the_state_before_it_drew() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    ((_, drawn),) = reported(lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=0.5))
    assert torch.equal(drawn, state)
    assert not torch.equal(torch.get_rng_state(), state)
