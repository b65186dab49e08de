"""`timed_op` logs a function of the user under its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from tests.comm.single_calls import ticking

Ranks = Callable[..., list[Any]]


def custom_ops() -> tuple[list[tuple[str, int]], list[float]]:
    import torch
    import torch.distributed as td

    @dist.timed_op
    def ring_sum(tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
        return td.all_reduce(tensor, group=group, async_op=async_op)

    dist.configure(enabled=True)
    tensor = torch.ones(16)
    ring_sum(tensor)
    ring_sum(tensor, async_op=True, log_name="ring twice").wait()
    logged = [(record.name, record.bytes) for record in dist.comms_logger.records if record.seconds]
    return logged, tensor.tolist()[:1]


@pytest.mark.processes
def test_an_op_of_the_users_own_is_logged_under_its_name(ranks: Ranks) -> None:
    assert ranks(2, custom_ops) == [([("ring_sum", 64), ("ring twice", 64)], [4.0])] * 2


def test_a_measurement_under_an_unknown_name_is_kept() -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    log.append("warp_drive", "my warp", latency=2.0, msg_size=4_000_000, group_size=8)
    log.append("all_reduce", "all_reduce", latency=2.0, msg_size=4_000_000, group_size=8)
    first, second = log.summary().rows
    assert (first.name, first.op, first.rates) == ("my warp", "warp_drive", (2.0, 2.0))
    assert second.rates == pytest.approx((2.0, 3.5))
    assert log.trace().events["op"].to_list() == ["warp_drive", "all_reduce"]
