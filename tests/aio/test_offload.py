"""Predicted swaps: bytes and seconds by hand, from a made-up sweep.

Modules: ``aio/offload.py``, ``sharding/layout.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dsexplore
from dsexplore._internal.aio.offload import OffloadCost
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig
from tests.aio.sweeps.results import result_of

SWEPT = result_of([{AioConfig(): (7.0, 5.5)}] * 3)
"""A disk that reads 7 GB/s and writes 5.5 GB/s."""


def cost(mesh: str = "dp=8", **options: object) -> OffloadCost:
    """Return the cost of 8.03 billion parameters in bfloat16, sharded over dp."""
    plan = dsexplore.sharding((8_030_000_000,), "S(0)", mesh, torch.bfloat16)
    return plan.offload(SWEPT, **options)  # type: ignore[arg-type]


def test_states_are_read_and_written_once() -> None:
    found = cost(step_seconds=5.0, tokens=65536)
    (states,) = found.swaps
    assert states.read == states.written == 12 * 8_030_000_000
    assert (states.read_seconds, states.write_seconds) == pytest.approx((13.766, 17.520), rel=1e-4)
    assert found.verdict() == (
        "Swapping optimizer states makes a step 31.3 s longer: 86 % of the 36.3 s that it then takes; the node trains "
        "1,806 tokens/s."
    )
    assert any(
        line.startswith("For a tenth of the step's own time, it takes 63 times the disks") for line in found.lines()
    )


def test_without_the_time_of_a_step_the_disk_alone_is_said() -> None:
    assert cost(tokens=65536).verdict().endswith("this disk feeds at most 2,095 tokens/s.")
    assert cost().verdict() == "Swapping optimizer states makes a step 31.3 s longer."


def test_ranks_of_a_node_share_the_disk() -> None:
    assert cost("dp=64").exposed == pytest.approx(cost().exposed / 8, rel=1e-6)
    assert cost("dp=64", ranks_per_node=64).exposed == pytest.approx(cost().exposed, rel=1e-6)
    assert cost("dp=64", ranks_per_node=1).node_parameters == -(-8_030_000_000 // 64)


@pytest.mark.parametrize(("step", "exposed"), [(None, 4.589 + 2.920), (2.0, 2.589 + 2.920), (9.0, 2.920)])
def test_reading_parameters_hides_behind_the_step(step: float | None, exposed: float) -> None:
    _, parameters = cost(parameters=True, step_seconds=step).swaps
    assert (parameters.read, parameters.written) == (4 * 8_030_000_000, 2 * 8_030_000_000)
    assert parameters.exposed == pytest.approx(exposed, abs=2e-3)


def test_frozen_parameters_have_no_states() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 10, bias=False).requires_grad_(False), torch.nn.Linear(10, 3, False)
    )
    assert dsexplore.sharding(model).offload(SWEPT).swaps[0].read == 12 * 30
    with pytest.raises(UsageError, match="no parameter is trained"):
        dsexplore.sharding(model[0]).offload(SWEPT)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bytes_per_parameter": 0}, "bytes_per_parameter 0"),
        ({"ranks_per_node": 0}, "ranks_per_node 0"),
        ({"step_seconds": 0.0}, "step_seconds 0"),
        ({"tokens": 0}, "tokens 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cost(**options)


def test_a_sweep_that_only_read_is_refused() -> None:
    reads = result_of([{AioConfig(): (7.0, 5.5)}] * 3)
    reads = replace(reads, measured=tuple(m for m in reads.measured if m.sample.operation == "read"))
    with pytest.raises(UsageError, match="this sweep has no writes"):
        dsexplore.sharding((8,), "S(0)", "dp=2").offload(reads)
