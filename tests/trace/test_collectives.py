import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore.errors import UsageError
from dsexplore.trace.collectives import OPS, bus_factor, wire_bytes

SIZES = st.integers(1, 4096)


def test_the_worked_example() -> None:
    """Four shards of 1 MiB gathered: S = 4 MiB, each rank sends 3 MiB."""
    assert wire_bytes("all_gather", 4 * 2**20, 4) == 3 * 2**20


@given(SIZES)
def test_factors_follow_nccl_tests(n: int) -> None:
    assert bus_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
    for op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert bus_factor(op, n) == pytest.approx((n - 1) / n)
    for op in ("broadcast", "reduce", "send", "recv", "barrier", "unknown:new"):
        assert bus_factor(op, n) == 1


@given(st.sampled_from(OPS), st.integers(0, 2**50), SIZES)
def test_wire_bytes_are_the_factor_in_whole_bytes(op: str, message_bytes: int, n: int) -> None:
    sent = wire_bytes(op, message_bytes, n)
    if n == 1:
        assert sent == 0
    else:
        assert sent == pytest.approx(message_bytes * bus_factor(op, n), abs=1)


@given(st.integers(1, 2**40), st.integers(2, 4096))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(part: int, n: int) -> None:
    whole = part * n
    assert wire_bytes("all_reduce", whole, n) == wire_bytes("reduce_scatter", whole, n) + wire_bytes(
        "all_gather", whole, n
    )


def test_a_group_without_ranks_is_an_error() -> None:
    with pytest.raises(UsageError, match="group_size 0"):
        bus_factor("all_reduce", 0)
    with pytest.raises(UsageError, match="group_size -1"):
        wire_bytes("send", 1, -1)
