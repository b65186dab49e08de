"""Choice among settings that are about as fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.choice import Best, Cost, choose, expense, tied_with_best
from dsexplore._internal.aio.sweeps.statistics import Interval

CONTROL = AioConfig()
SMALL, DEEP, WIDE = AioConfig(queue_depth=4), AioConfig(queue_depth=32), AioConfig(queue_depth=64, thread_count=4)
EQUAL = Cost(1e-3, 10.0)

Rounds = Mapping[AioConfig, Mapping[int, float]]


def steadily(**ratios: float) -> dict[AioConfig, dict[int, float]]:
    """Return four rounds in which each setting reached about the same ratio, and the default 1."""
    named = {"control": CONTROL, "small": SMALL, "deep": DEEP, "wide": WIDE}
    wobble = (0.999, 1.001, 1.0, 1.0)
    return {named[name]: {n: ratio * wobble[n] for n in range(4)} for name, ratio in {"control": 1.0, **ratios}.items()}


def chosen(rounds: Rounds, **worst: float) -> tuple[AioConfig, str]:
    named = {"small": SMALL, "deep": DEEP, "wide": WIDE}
    lowest = dict.fromkeys(rounds, 1.0) | {named[name]: value for name, value in worst.items()}
    choice = choose(rounds, CONTROL, dict.fromkeys(rounds, EQUAL), lowest)
    return choice.config, choice.doubt


@pytest.mark.parametrize(
    ("ratios", "config"),
    [
        ({"deep": 1.049}, CONTROL),  # not worth leaving the default
        ({"deep": 1.051}, DEEP),
        ({"deep": 0.5}, CONTROL),
        ({"deep": 1.2, "wide": 1.25}, DEEP),  # within 5 % of the fastest, and cheaper
        ({"deep": 1.18, "wide": 1.25}, WIDE),
        ({"small": 1.19, "deep": 1.2, "wide": 1.21}, SMALL),
        ({"small": 1.03, "wide": 1.07}, WIDE),  # tied with the fastest, but itself not worth leaving the default
    ],
)
def test_the_cheapest_of_those_that_are_worth_it(ratios: dict[str, float], config: AioConfig) -> None:
    assert chosen(steadily(**ratios)) == (config, "")


def test_one_measurement_is_not_enough() -> None:
    config, unsure = chosen({CONTROL: {0: 1.0}, DEEP: {0: 16.9}})
    assert config == CONTROL
    assert unsure == "each setting was measured only once, so give the sweep more seconds"
    for ratio in (0.5, 0.99, 1.04):  # nothing to gain is no more sure
        assert chosen({CONTROL: {0: 1.0}, DEEP: {0: ratio}}) == (CONTROL, unsure)
    assert chosen({CONTROL: {0: 1.0, 1: 1.0}, DEEP: {0: 1.5, 1: 1.5}}) == (DEEP, "")


def test_what_scatters_is_not_taken() -> None:
    assert chosen({CONTROL: dict.fromkeys(range(3), 1.0), DEEP: {0: 0.7, 1: 2.0, 2: 1.5}}) == (CONTROL, "")
    wide = {0: 1.15, 1: 1.3, 2: 1.5, 3: 1.7}  # surely faster, but by 9 or by 79 %
    assert chosen({CONTROL: dict.fromkeys(range(4), 1.0), DEEP: wide}) == (CONTROL, "")
    narrow = {0: 1.3, 1: 1.35, 2: 1.4, 3: 1.45}
    assert chosen({CONTROL: dict.fromkeys(range(4), 1.0), DEEP: narrow}) == (DEEP, "")


def test_what_is_slower_at_one_tensor_size_is_not_taken() -> None:
    rounds = steadily(deep=1.3, wide=1.32)
    assert chosen(rounds, deep=0.985) == (DEEP, "")
    assert chosen(rounds, deep=0.97) == (WIDE, "")
    config, unsure = chosen(rounds, deep=0.97, wide=0.9)
    assert config == CONTROL
    assert unsure == f"{DEEP} is faster on average, but 3.0 % slower at one of the tensor sizes"


def test_the_tied_are_listed_the_cheapest_first() -> None:
    rounds = steadily(small=0.961, wide=1.01, deep=0.94)
    assert tied_with_best(rounds, dict.fromkeys(rounds, EQUAL)) == (SMALL, CONTROL, WIDE)


def test_ties_are_judged_by_the_rounds_that_both_took_part_in() -> None:
    """Ignore rounds that only one of two settings took part in: they met other conditions."""
    rounds = {CONTROL: dict.fromkeys(range(3), 1.0), DEEP: {0: 2.0, 1: 1.2, 2: 1.2}, SMALL: {0: 1.95}}
    assert tied_with_best(rounds, dict.fromkeys(rounds, EQUAL)) == (SMALL, DEEP)
    rounds[WIDE] = {3: 9.0}  # which no other took part in
    assert tied_with_best(rounds, dict.fromkeys(rounds, EQUAL)) == (WIDE,)


def test_what_is_expensive() -> None:
    """Order by memory in flight, then latency, then processor time, each in steps of a quarter, then threads."""
    two, single = AioConfig(queue_depth=4, thread_count=2), AioConfig(single_submit=True)
    ordered = [
        (SMALL, Cost(9e-3, 99.0)),
        (two, Cost(1e-3, 10.0)),
        (CONTROL, Cost(2e-3, 5.0)),
        (single, Cost(2e-3, 5.0)),
        (single, Cost(2.02e-3, 10.0)),
        (AioConfig(queue_depth=16), Cost(1e-3, 1.0)),
    ]
    assert sorted([*ordered[3:], *ordered[:3]], key=lambda pair: expense(*pair)) == ordered


def test_the_sentence_gives_the_span_of_what_scatters() -> None:
    wide = Interval(1.3, 0.9, 1.7, 4)
    best = Best(CONTROL, Interval(1.0, 1.0, 1.0, 4), 1e9, DEEP, wide, (DEEP,), Interval(0.77, 0.6, 1.1, 4))
    assert best.verdict().startswith(
        f"Keep the default: nothing measured is reliably faster. {DEEP} looks best, +30.0 % (-10.0 to +70.0 %)"
    )
    once = replace(best, fastest_ratio=Interval(1.3, 0.01, 1.7, 2))
    assert once.verdict().startswith(
        f"Keep the default: nothing measured is reliably faster. {DEEP} looks best, +30.0 % (n 2)"
    )
