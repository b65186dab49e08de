"""Fixtures for programs on real local ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dsexplore.comm as dist
from dsexplore import run_ranks
from dsexplore._internal.comm import switches
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig


@pytest.fixture(scope="module", autouse=True)
def ranks_can_start(rank_server: None) -> None:
    """Start the process that ranks are forked from before the first test."""


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """``ranks(n, program, *args)``: what the program returned on each of n gloo ranks."""

    def run(world_size: int, program: Callable[..., Any], *args: Any) -> list[Any]:
        return run_ranks(program, world_size, args=args, timeout=240, group_timeout=60).values

    return run


@pytest.fixture
def patience() -> float:
    """Seconds in which two ranks start and meet on this machine, as it is now, with room to spare."""
    return 3 + 8 * run_ranks("1", 2, timeout=240, group_timeout=120).seconds


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Leave the logger and the switches of this process as they were."""
    yield
    dist.comms_logger.configure(CommsLoggerConfig())
    dist.comms_logger.reset_data()
    switches.off.clear()
    switches._warned.clear()
