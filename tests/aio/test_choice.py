"""Which setting is taken of those that are about as fast."""

from __future__ import annotations

from dsexplore.aio.aio_config import AioConfig
from dsexplore.aio.choice import cost, tied_with_best


def test_the_cheapest_of_equals_is_chosen() -> None:
    cheap, dear, slow = AioConfig(queue_depth=4), AioConfig(queue_depth=64, thread_count=4), AioConfig(queue_depth=1)
    noisy = {0: 1.99, 1: 2.03, 2: 1.97, 3: 2.02}
    rounds = {cheap: noisy, dear: dict.fromkeys(range(4), 2.005), slow: dict.fromkeys(range(4), 1.5)}
    assert tied_with_best(rounds) == [cheap, dear]


def test_a_large_difference_is_no_tie_however_noisy() -> None:
    cheap, dear = AioConfig(queue_depth=4), AioConfig(queue_depth=64)
    rounds = {cheap: {0: 0.7, 1: 1.2, 2: 0.9}, dear: {0: 1.1, 1: 0.9, 2: 1.2}}
    assert tied_with_best(rounds) == [dear]


def test_cost_counts_threads_first_then_memory() -> None:
    ordered = [AioConfig(queue_depth=4), AioConfig(queue_depth=64), AioConfig(queue_depth=1, thread_count=2)]
    assert sorted([ordered[2], ordered[0], ordered[1]], key=cost) == ordered
