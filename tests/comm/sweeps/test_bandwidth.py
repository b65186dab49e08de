"""Bandwidths against nccl-tests' published lines and its formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsexplore.comm as dist
from dsexplore._internal.comm.sweeps.bandwidth import rate_text
from dsexplore._internal.errors import UsageError

SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
PLAIN = ("broadcast", "reduce", "send", "recv")


@pytest.mark.parametrize(
    ("op", "message_bytes", "microseconds", "algbw", "busbw"),
    [
        ("all_reduce", 17179869184, 61974, 277.21, 485.12),
        ("reduce_scatter", 8 * 2147483648, 41057, 418.44, 366.13),
    ],
)
def test_lines_that_nccl_tests_printed(
    op: str, message_bytes: int, microseconds: int, algbw: float, busbw: float
) -> None:
    rates = dist.bandwidth(op, message_bytes, microseconds / 1e6, 8)
    assert [round(rate, 2) for rate in rates] == [algbw, busbw]


@given(
    size=st.integers(1, 2**40),
    seconds=st.floats(1e-7, 1e3),
    n=st.integers(2, 4096),
)
def test_the_bus_factor_is_that_of_the_collective(size: int, seconds: float, n: int) -> None:
    wanted = {"all_reduce": 2 * (n - 1) / n, **dict.fromkeys(SHARED, (n - 1) / n), **dict.fromkeys(PLAIN, 1.0)}
    for op, factor in wanted.items():
        algbw, busbw = dist.bandwidth(op, size, seconds, n)
        assert algbw == pytest.approx(size / seconds / 1e9)
        assert busbw == pytest.approx(algbw * factor)


@pytest.mark.parametrize(
    ("spelling", "op"),
    [
        ("all_gather_into_tensor", "all_gather"),
        ("all_gather_object", "all_gather"),
        ("all_reduce_coalesced", "all_reduce"),
        ("inference_all_reduce", "all_reduce"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_to_all_single", "all_to_all"),
        ("isend", "send"),
        ("irecv", "recv"),
    ],
)
def test_a_spelling_counts_as_its_op(spelling: str, op: str) -> None:
    assert dist.bandwidth(spelling, 1000, 1e-3, 4) == dist.bandwidth(op, 1000, 1e-3, 4)


def test_an_op_that_nobody_knows_has_factor_one() -> None:
    assert dist.bandwidth("quantum_gossip", 2_000_000_000, 2.0, 8) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("all_reduce", -1, 1.0, 2), "message_bytes -1"),
        (("all_reduce", 1, 0.0, 2), "seconds 0.0"),
        (("all_reduce", 1, float("nan"), 2), "seconds nan"),
        (("all_reduce", 1, 1.0, 0), "group_size 0"),
    ],
)
def test_figures_that_mean_nothing_are_refused(arguments: tuple[str, float, float, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        dist.bandwidth(*arguments)


def test_rates_are_rounded_before_their_unit_is_chosen() -> None:
    rates = (0.9997, 1200.0, 0.0125, 46.2, 0.0)
    assert [rate_text(rate) for rate in rates] == ["1 GB/s", "1.2 TB/s", "12.5 MB/s", "46.2 GB/s", "0 kB/s"]
