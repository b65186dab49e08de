"""A test that fails when a change makes a layer send more than it should.

python -m pytest examples/test_what_is_sent.py
"""

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dsexplore


def test_a_feed_forward_sends_one_all_reduce_in_forward() -> None:
    with dsexplore.simulate(mesh="tp=4") as mesh:
        layer = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        with dsexplore.expect_comms(all_reduce={"count": 1, "axis": "tp", "bytes": 16 * 64 * 4}):
            layer(torch.randn(16, 64))
