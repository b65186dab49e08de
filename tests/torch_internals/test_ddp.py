"""Which modules DDP reduces the gradients of."""

from __future__ import annotations

from torch import nn
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import replicate
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.torch_internals.ddp import is_replicated


def test_what_ddp_reduces_is_replicated_and_what_fsdp_reduces_is_not() -> None:
    with dsexplore.simulate(2, mesh="dp=2") as mesh:
        by_ddp, by_fsdp = nn.Linear(4, 4), nn.Linear(4, 4)
        replicate(by_ddp)
        replicate_with_fsdp.replicate(by_fsdp, mesh=mesh)
        assert is_replicated(by_ddp)
        assert is_replicated(DistributedDataParallel(nn.Linear(4, 4)))
        assert not is_replicated(by_fsdp)
        assert not is_replicated(nn.Linear(4, 4))
