"""Functions that DeepSpeed's comm layer has and torch has not."""

from __future__ import annotations

import dsexplore.comm as dist
from dsexplore import simulate


def test_torch_has_what_deepspeed_asks_for() -> None:
    with simulate(2):
        assert dist.has_all_gather_into_tensor() is True
        assert dist.has_reduce_scatter_tensor() is True
