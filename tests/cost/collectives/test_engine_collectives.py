"""The all_reduce of inference engines: one shot, two shots, NCCL, and links over which GPUs cannot read each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsexplore import UsageError
from dsexplore._internal.cost.collectives.engine_collectives import custom_all_reduce_time
from dsexplore.cost import Cluster, collective_time

H100 = Cluster.load("dgx-h100")


def test_short_messages_are_faster_than_nccl_s_and_long_ones_are_left_to_it() -> None:
    short, nccl = (function(64 << 10) for function in (own, library))
    assert short < 0.5 * nccl
    assert own(1 << 30) == library(1 << 30)


def own(size: float, cluster: Cluster = H100) -> float:
    return custom_all_reduce_time(size, 8, cluster).expected


def library(size: float) -> float:
    return collective_time("all_reduce", size, 8, hardware=H100).expected


def test_one_shot_reads_all_messages_and_two_shots_read_each_byte_twice_at_most() -> None:
    rate = 0.8 * H100.node.bandwidth * H100.node.achievable
    one = own(16 << 10) - own(8 << 10)
    two = own(8 << 20) - own(4 << 20)
    assert one == pytest.approx((8 << 10) * 7 / rate, rel=1e-6)
    assert two == pytest.approx((4 << 20) * 2 * 7 / 8 / rate, rel=1e-6)


def test_more_bytes_and_slower_links_take_longer() -> None:
    slow = replace(H100, node=replace(H100.node, bandwidth=H100.node.bandwidth / 2))
    times = [own(2.0**power) for power in range(3, 34)]
    assert times == sorted(times)
    assert all(own(2.0**power, slow) >= own(2.0**power) for power in range(3, 34))


def test_nothing_is_sent_alone_and_pcie_has_no_such_kernel() -> None:
    assert custom_all_reduce_time(1 << 20, 1).high == 0
    with pytest.raises(UsageError, match="8xl40s has no switch"):
        custom_all_reduce_time(1 << 20, 8, "8xl40s")
    with pytest.raises(UsageError, match="message_bytes -1 is not a size"):
        custom_all_reduce_time(-1, 8)
    with pytest.raises(UsageError, match="ranks_per_node 16 does not fit"):
        custom_all_reduce_time(8, 16)
