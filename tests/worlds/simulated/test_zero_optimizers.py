"""``ZeroRedundancyOptimizer`` consolidates its state on simulated ranks.

Modules: ``worlds/simulated/optimizer_states.py``.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import dsexplore

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_ranks_states_are_broadcast_with_their_sizes(rank: int, device: str, fake: bool) -> None:
    with dsexplore.simulate(4, rank=rank, hardware="h100" if device == "cuda" else None, fake=fake):
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(device))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
        model(torch.ones(2, 8, device=device)).sum().backward()
        optimizer.step()
        with dsexplore.commtrace() as trace:
            optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            state = optimizer.state_dict()
            assert len(state["param_groups"][0]["params"]) == 8
            assert state["state"][0]["exp_avg"].shape == (8, 8)
    sent = trace.events
    assert sent["op"].to_list() == ["broadcast"] * 6  # of all but rank 0
    sizes, states = sent["message_bytes"].to_list()[::2], sent["message_bytes"].to_list()[1::2]
    assert set(sizes) == {8}
    assert min(states) > 2 * 4 * 8 * 8  # two moments of a weight, at least


@pytest.mark.parametrize("rank", range(3))
def test_ranks_that_update_unlike_numbers_of_parameters(rank: int) -> None:
    with dsexplore.commtrace(world_size=3, rank=rank):
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.consolidate_state_dict(to=rank)
        state = optimizer.state_dict()["state"]
    if rank < 2:  # the third rank updates nothing, and does not know what a state is
        assert [tuple(state[number]["exp_avg"].shape) for number in (0, 1)] == [(4, 4), (4,)]
    else:
        assert state == {}
