from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.collectives import OPS, bus_factor, wire_bytes

SIZES = st.integers(1, 4096)


def test_the_worked_example() -> None:
    """Four shards of 1 MiB gathered: S = 4 MiB, each rank sends 3 MiB."""
    assert wire_bytes("all_gather", 4 * 2**20, 4) == 3 * 2**20


@given(st.integers(2, 4096))
def test_factors_follow_nccl_tests(n: int) -> None:
    assert bus_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
    for op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert bus_factor(op, n) == pytest.approx((n - 1) / n)
    for op in ("broadcast", "reduce", "send", "recv", "barrier", "unknown:new"):
        assert bus_factor(op, n) == 1


@given(st.sampled_from([*(op for op in OPS if op != "recv"), "unknown:new"]), st.integers(0, 2**50), SIZES)
def test_wire_bytes_are_the_factor_in_whole_bytes_rounded_up(op: str, message_bytes: int, n: int) -> None:
    factor = Fraction(bus_factor(op, n)).limit_denominator(4096)
    assert wire_bytes(op, message_bytes, n) == ceil(message_bytes * factor)


@pytest.mark.parametrize("op", [*OPS, "unknown:new"])
def test_a_rank_alone_sends_nothing(op: str) -> None:
    assert bus_factor(op, 1) == 0
    assert wire_bytes(op, 1 << 20, 1) == 0


@pytest.mark.parametrize(
    ("op", "sent"),
    [("all_reduce", 15), ("all_gather", 8), ("reduce_scatter", 8), ("broadcast", 10), ("send", 10), ("unknown:x", 10)],
)
def test_parts_of_a_byte_count_as_one(op: str, sent: int) -> None:
    """10 bytes in a group of 4: 2 × 3/4, 3/4 and 1 times 10."""
    assert wire_bytes(op, 10, 4) == sent


@given(st.integers(1, 2**40), st.integers(2, 4096))
def test_a_message_is_sent_by_its_sender_alone(message_bytes: int, n: int) -> None:
    assert (wire_bytes("send", message_bytes, n), wire_bytes("recv", message_bytes, n)) == (message_bytes, 0)


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
    with pytest.raises(UsageError, match="group_size 0"):
        wire_bytes("all_gather", 1, 0)
