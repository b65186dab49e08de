"""Predicted checkpoints: bytes by hand, seconds from made-up rates.

Modules: ``aio/checkpoints/predict_checkpoint.py``, ``sharding/layout.py``.
"""

from __future__ import annotations

import pytest
import torch

import dsexplore
from dsexplore._internal.aio.checkpoints.checkpoint_rates import CheckpointRates, MethodRates, SaveTime
from dsexplore._internal.aio.checkpoints.predict_checkpoint import CheckpointCost
from dsexplore._internal.errors import UsageError
from tests.aio.checkpoints.test_loading_result import DISK

MB = 10**6
RATES = CheckpointRates(
    DISK,
    (
        MethodRates("torch.save", 100 * MB, (SaveTime(1.0, 1.0, 0.5),)),
        MethodRates("DCP", 100 * MB, (SaveTime(0.5, 0.5, 0.5),)),
        MethodRates("DCP, asynchronous", 100 * MB, (SaveTime(0.1, 0.5, 0.5),)),
        MethodRates("direct writes", 100 * MB, (SaveTime(0.25, 0.25, 0.25),)),
    ),
)


def cost(mesh: str = "dp=4", **options: object) -> CheckpointCost:
    """Return the cost of 100 million parameters in bfloat16, sharded over dp, and their two states: 600 MB."""
    plan = dsexplore.sharding((100 * MB,), "S(0)" if "," not in mesh else "R, S(0)", mesh, torch.bfloat16)
    return plan.checkpoint(RATES, **options)  # type: ignore[arg-type]


def test_bytes_are_those_of_parameters_and_states() -> None:
    assert (cost().nbytes, cost().rank_bytes) == (600 * MB, 150 * MB)
    assert cost(optimizer="none").nbytes == 200 * MB
    assert cost(state_dtype=torch.float32).nbytes == 1000 * MB
    assert cost("replica=2,dp=4").rank_bytes == 75 * MB  # copies share the work


def test_frozen_parameters_have_no_states() -> None:
    model = torch.nn.Linear(10, 10, bias=False).requires_grad_(False)
    assert dsexplore.sharding(model).checkpoint(RATES).nbytes == 400


def test_ranks_of_a_node_share_the_disk() -> None:
    by_name = {method.name: method for method in cost().methods}
    assert by_name["torch.save"].save == 6.0  # 600 MB by rank 0, at 100 MB/s
    assert by_name["DCP"].save == 1.5  # four ranks at 200 MB/s each, but the disk takes 400 MB/s
    assert by_name["direct writes"].save == 1.5
    assert by_name["DCP, asynchronous"].stall == pytest.approx(0.15)
    apart = {method.name: method for method in cost(ranks_per_node=1).methods}
    assert apart["DCP"].save == 0.75
    assert apart["direct writes"].save == 0.375


def test_each_tensor_of_a_rank_takes_time() -> None:
    """Each rank writes its piece of each tensor, and its states; copies share the work, and each loads all."""
    dcp = MethodRates("DCP", MB, (SaveTime(1.0, 1.0, 1.0),), 0, per_tensor=SaveTime(0.5, 0.5, 0.25))
    rates = CheckpointRates(DISK, (dcp,))
    one = dsexplore.sharding((4000,), "S(0)", "dp=4", torch.float32).checkpoint(rates, "none", ranks_per_node=1)
    adam = dsexplore.sharding((4000,), "S(0)", "dp=4", torch.float32).checkpoint(rates, ranks_per_node=1)
    copies = dsexplore.sharding((4000,), "R", "dp=4", torch.float32).checkpoint(rates, "none", ranks_per_node=1)
    times = [(each.methods[0].save, each.methods[0].load) for each in (one, adam, copies)]
    assert times == [(0.504, 0.254), (1.512, 0.762), (0.129, 0.266)]


def test_a_replica_loads_all_that_it_holds() -> None:
    loads = {method.name: method.load for method in cost("replica=2,dp=4").methods}
    assert loads["direct writes"] == 8 * 150 / 400


def test_how_often_one_is_affordable() -> None:
    found = cost(overhead=0.1, step_seconds=2.0)
    every = {method.name: method.every for method in found.methods}
    assert every["torch.save"] == 60.0
    assert every["DCP, asynchronous"] == pytest.approx(1.5)
    assert found.verdict() == (
        "Save with DCP, asynchronous: it holds a step for 150 ms and is on the disk after 1.5 s; affordable every "
        "1 step (1.5 s)."
    )
    assert found.interval(found.methods[0]) == "30 steps (60 s)"
    assert cost(overhead=0.5).to_frame()["every"].min() == 1.5  # not before the last one is on the disk


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks_per_node": 0}, "ranks_per_node 0"),
        ({"overhead": 0.0}, "overhead 0"),
        ({"overhead": 1.5}, r"overhead 1\.5"),
        ({"step_seconds": -1.0}, "step_seconds -1"),
        ({"optimizer": "Muon9"}, "'Muon9' is not known"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cost(**options)
