"""Collectives of tensor parallelism in pieces beside their products: exact seconds of small programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.kernels.async_tp import in_pieces
from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.rank_program import Collective, Item, Kernels, Wait
from dsexplore._internal.cost.step.stream_simulation import SimulatedStep, play

RANKS = 4


def product(seconds: float, module: str = "w1", shape: tuple[int, ...] = (1, 64, 32, 16)) -> Kernels:
    return Kernels((seconds,) * 3, (0.0,) * 3, module, "forward", "matmul", shape)


def collective(seq: int, seconds: float, op: str = "all_gather", link: str = "node") -> Collective:
    return Collective(
        seq, (seconds,) * 3, "tp collectives", link, "async", "m", "forward", op, "tp", 1 << 20, ranks=RANKS
    )


def run(*items: Item) -> SimulatedStep:
    return play(in_pieces(items), Estimate.EXPECTED, 0.0)


def test_of_a_gather_its_first_piece_is_waited_for() -> None:
    """4 s in four pieces, beside 10 s of products on what was gathered."""
    played = run(collective(0, 4), Wait(0), product(5), product(5, "w3"))
    assert (played.seconds, played.exposed, played.communication) == (11, 1, 4)


def test_a_gather_that_takes_longer_than_its_products_is_waited_for() -> None:
    played = run(collective(0, 8), Wait(0), product(3))
    assert (played.seconds, played.exposed) == (8, 5)


def test_products_on_something_else_hide_no_gather() -> None:
    """The product of another depth is another layer's: the gather is over before it begins."""
    played = run(collective(0, 8), Wait(0), product(1), product(9, "w2", (1, 64, 32, 48)))
    assert played.seconds == 8 + 9


def test_of_a_scatter_its_last_piece_is_waited_for() -> None:
    played = run(product(10, "w2"), collective(0, 4, "reduce_scatter"), Wait(0), product(1))
    assert (played.seconds, played.exposed, played.communication) == (12, 1, 4)


@pytest.mark.parametrize(
    "items",
    [
        [collective(0, 4, link="network"), Wait(0), product(9)],
        [collective(0, 4, "all_reduce"), Wait(0), product(9)],
        [replace(collective(0, 4), sync="fsdp gather"), Wait(0), product(9)],
        [collective(0, 4, "reduce_scatter"), Wait(0)],
        [collective(0, 4), Wait(0), replace(product(9), kind="attention")],
    ],
)
def test_what_torch_does_not_divide_stays_whole(items: list[Item]) -> None:
    assert in_pieces(items) == items


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 9), st.floats(0.1, 9)), max_size=6))
def test_pieces_are_never_slower_and_send_as_much(layers: list[tuple[bool, float, float]]) -> None:
    items: list[Item] = []
    for seq, (gathers, sent, computed) in enumerate(layers):
        moved = [collective(seq, sent, "all_gather" if gathers else "reduce_scatter"), Wait(seq)]
        items += [*moved, product(computed)] if gathers else [product(computed), *moved]
    whole, divided = play(items, Estimate.EXPECTED, 0.0), run(*items)
    assert divided.seconds <= whole.seconds + 1e-9
    assert divided.communication == pytest.approx(whole.communication)
    assert divided.compute + divided.exposed + divided.idle == pytest.approx(divided.seconds)
