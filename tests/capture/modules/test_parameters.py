"""What is read of a model's parameters."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import dsexplore
from dsexplore._internal.capture.record import record


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_parameters_are_described_once_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3, bias=False), nn.Linear(3, 2, bias=False))
    with record() as trace:
        model(torch.ones(1, 5))
    described = list(trace.parameters.select("module", "global_shape").iter_rows())
    assert described == [("Sequential.0", [3, 5]), ("Sequential.1", [2, 3])]


def test_alike_but_for_one_thing_they_keep_it() -> None:
    def parameter(axis: str, placement: Shard | Replicate, dtype: torch.dtype, requires_grad: bool) -> nn.Parameter:
        whole = torch.ones(4, 4, dtype=dtype)
        return nn.Parameter(distribute_tensor(whole, mesh[axis], [placement]), requires_grad)

    model = nn.Module()
    model.forward = torch.ones_like  # type: ignore[method-assign]
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh:
        model.on_dp = parameter("dp", Shard(0), torch.float32, True)
        model.again = parameter("dp", Shard(0), torch.float32, True)
        model.on_tp = parameter("tp", Shard(0), torch.float32, True)
        model.columns = parameter("dp", Shard(1), torch.float32, True)
        model.whole = parameter("dp", Replicate(), torch.float32, True)
        model.halves = parameter("dp", Shard(0), torch.bfloat16, True)
        model.frozen = parameter("dp", Shard(0), torch.float32, False)
        with record() as trace:
            model(torch.ones(1))
    columns = ("name", "mesh", "placements", "dtype", "local_shape", "local_bytes", "requires_grad")
    assert list(trace.parameters.select(columns).iter_rows()) == [
        ("Module.on_dp", "dp=2", "S(0)", "float32", [2, 4], 32, True),
        ("Module.again", "dp=2", "S(0)", "float32", [2, 4], 32, True),
        ("Module.on_tp", "tp=2", "S(0)", "float32", [2, 4], 32, True),
        ("Module.columns", "dp=2", "S(1)", "float32", [4, 2], 32, True),
        ("Module.whole", "dp=2", "R", "float32", [4, 4], 64, True),
        ("Module.halves", "dp=2", "S(0)", "bfloat16", [2, 4], 16, True),
        ("Module.frozen", "dp=2", "S(0)", "float32", [2, 4], 32, False),
    ]
