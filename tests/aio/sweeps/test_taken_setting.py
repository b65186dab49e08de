"""Which setting a result recommends, by which rounds, and how sure it is.

Modules: ``aio/sweeps/result.py``, ``aio/sweeps/measurements.py``, ``aio/sweeps/choice.py``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dsexplore._internal.aio.sweeps.measurements import Phase, RoundSlice, mix
from dsexplore.aio import AioConfig, SweepResult
from tests.aio.sweeps.results import CONTROL, DEEP, better_result, result_of, sample


@pytest.fixture
def better() -> SweepResult:
    return better_result()


def test_best(better: SweepResult) -> None:
    best = better.best()
    assert (best.config, best.fastest, best.tied) == (DEEP, DEEP, (DEEP,))
    assert best.ratio.value == pytest.approx(1.5)
    assert best.default_ratio.value == pytest.approx(1 / 1.5)
    assert best.rate == pytest.approx(mix({"read": 3.075e9, "write": 1.575e9}, 0.5))
    assert best.verdict() == (
        "Take 1 MiB × depth 32 × 1 thread, block submit, overlap: +50.0 % over the default (+50.0 to +50.0 %)."
    )
    assert best.fastest_ratio == best.ratio
    assert best.doubts == ()
    assert "Less than 5 % apart" not in str(better)


def test_an_unsure_gain_is_said_to_be_unsure() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (2.0, 0.5, 3.0, 1.0)])
    assert result.best().config == CONTROL
    assert (
        result.best()
        .verdict()
        .startswith(f"Keep the default: nothing measured is reliably faster. {DEEP} looks best, +31.6 % (")
    )
    assert "sweep again with more seconds" in result.best().verdict()
    wild = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (30.0, 0.5)])
    assert "looks best, +287.3 % (n 2): sweep again" in wild.best().verdict()


def test_one_measurement_is_never_sure() -> None:
    once = result_of([{CONTROL: (1.0, 1.0), DEEP: (16.9, 16.9)}])
    assert once.best().config == CONTROL
    assert once.to_ds_config() == CONTROL.to_ds_config()
    assert once.best().verdict() == (
        "Keep the default: each setting was measured only once, so give the sweep more seconds. "
        f"{DEEP} looked faster, but may not be."
    )


@pytest.mark.parametrize(
    ("disk", "conditions", "why"),
    [
        (
            {"direct": False, "why_buffered": "the filesystem refuses O_DIRECT (EINVAL)"},
            {},
            "the page cache was measured, not the disk, since the filesystem refuses O_DIRECT (EINVAL)",
        ),
        ({"kind": "memory", "direct": False}, {}, "these files live in memory, so no disk was measured"),
        ({"kind": "memory"}, {}, "these files live in memory, so no disk was measured"),
        (
            {"kind": "loop", "device": "/dev/loop3"},
            {},
            "/dev/loop3 is a loop device, whose data may come from the page cache: sweep where its file lies",
        ),
        (
            {},
            {"data_share": 0.25},
            "75 % of the file are holes or compressed, for which no disk is asked: sweep a file full of data, or a "
            "directory",
        ),
    ],
)
def test_what_was_not_measured_on_a_disk_keeps_the_default(
    better: SweepResult, disk: dict[str, object], conditions: dict[str, object], why: str
) -> None:
    doubtful = replace(
        better,
        disk=replace(better.disk, **disk),  # type: ignore[arg-type]
        conditions=replace(better.conditions, **conditions),  # type: ignore[arg-type]
    )
    best = doubtful.best()
    assert (best.config, best.fastest, best.doubts) == (CONTROL, DEEP, (why,))
    assert best.rate == doubtful.mixed_rate(CONTROL)
    assert doubtful.verdict() == f"Keep the default: {why}. {DEEP} looked faster, but may not be."
    assert doubtful.to_ds_config() == CONTROL.to_ds_config()


def test_a_file_that_is_nearly_full_of_data_is_not_doubted(better: SweepResult) -> None:
    assert replace(better, conditions=replace(better.conditions, data_share=0.96)).best().config == DEEP


def test_the_default_is_kept_when_it_is_as_good() -> None:
    result = result_of([{CONTROL: (2.0, 1.0), DEEP: (2.08, 1.04)}] * 3)
    tied = result.best()
    assert (tied.config, tied.fastest) == (CONTROL, DEEP)
    assert tied.verdict() == "The default is already within 3.8 % of the best setting found: nothing to gain."
    assert f"Less than 5 % apart, the cheapest first: {CONTROL}; {DEEP}." in result.lines()


def test_the_default_may_be_the_fastest() -> None:
    result = result_of([{CONTROL: (2.0, 1.0), DEEP: (1.9, 0.9)}] * 3)
    assert result.best().verdict() == "The default is the fastest setting found: nothing to gain."


def test_finals_alone_decide(better: SweepResult) -> None:
    lucky = result_of([{CONTROL: (1.0, 1.0), AioConfig(queue_depth=2): (9.0, 9.0)}], "descent")
    descent = tuple(RoundSlice("descent", 100, m.sample) for m in lucky.measured)
    better = replace(better, measured=descent + better.measured)
    assert better.best().config == DEEP
    assert len(better.to_frame()) == 6


def test_a_setting_that_was_dropped_cannot_win_by_the_luck_of_early_rounds() -> None:
    dropped = AioConfig(queue_depth=2)
    early = {CONTROL: (0.8, 0.8), DEEP: (1.1, 1.1), dropped: (1.0, 1.0)}  # the control met a hiccup
    result = result_of([early] * 3 + [{CONTROL: (1.0, 1.0), DEEP: (1.1, 1.1)}] * 9)
    best = result.best()
    assert (best.config, best.fastest) == (DEEP, DEEP)
    assert dropped in result.rounds


def test_an_unfinished_round_does_not_decide() -> None:
    other = AioConfig(queue_depth=2)
    whole = {CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3), other: (1.2, 1.2)}
    result = result_of([whole, whole, {CONTROL: (1.0, 1.0), other: (1.6, 1.6)}])
    best = replace(result, interrupted=True, unfinished_round=2).best()
    assert (best.config, best.fastest, best.tied) == (DEEP, DEEP, (DEEP,))
    assert best.ratio == pytest.approx((1.3, 1.3, 1.3, 2))


def test_an_interrupt_after_the_finals_drops_no_round_of_them(better: SweepResult) -> None:
    assert replace(better, interrupted=True).best() == better.best()
    assert better.best().ratio.n == 4


def test_before_a_round_of_the_finals_is_finished_the_search_decides() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3)}], "descent")
    measured = (*result.measured, RoundSlice("finals", 1, sample(CONTROL, "read", 1.0)))
    result = replace(result, measured=measured, interrupted=True, unfinished_round=1)
    assert result.best().fastest == DEEP
    assert result.mixed_rate(DEEP) == pytest.approx(1.3e9)


def test_a_sweep_that_is_cut_short_anywhere_says_what_it_knows() -> None:
    """Cut a sweep after each slice, also where only one of two tensor sizes was measured beside the control."""
    result = result_of([])
    sizes = product(("read", "write"), (32 << 20, 512 << 20))
    phases: tuple[tuple[Phase, int], ...] = (("descent", 1), ("finals", 2), ("finals", 3))
    rounds = product(phases, (DEEP, CONTROL, AioConfig(queue_depth=2)))
    slices = tuple(
        RoundSlice(phase, number, replace(sample(config, operation, 1.0), transfer=transfer))  # type: ignore[arg-type]
        for ((phase, number), config), (operation, transfer) in product(rounds, sizes)
    )
    for count in range(1, len(slices)):
        cut = replace(result, measured=slices[:count], interrupted=True, unfinished_round=slices[count - 1].round)
        text = str(cut)
        assert ("No setting was compared with the default yet." in text) == (count < 8) == (not cut.rounds)
        assert count < 8 or cut.best().config == CONTROL
        assert "Interrupted: the results so far." in text
        assert "Interrupted" in cut._repr_mimebundle_()["text/html"]


def test_the_rate_of_the_setting_to_take_has_an_interval(better: SweepResult) -> None:
    assert better.best().config == DEEP
    given = better.rate_interval()
    assert (given.n, given.low < given.value < given.high) == (4, True)
    rates = [mix({"read": read, "write": write}, 0.5) for read, write in ((3.0e9, 1.5e9), (3.15e9, 1.65e9))]
    assert given.value == pytest.approx((rates[0] * rates[1]) ** 0.5)
    once = result_of([{CONTROL: (1.0, 1.0)}]).rate_interval()
    assert once == (pytest.approx(1e9), 0.0, float("inf"), 1)
    cut = replace(better, measured=better.measured[:-1], interrupted=True, unfinished_round=3)  # before its last write
    assert SweepResult.from_json(cut.to_json()).rate_interval().n == 3
