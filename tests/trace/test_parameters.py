"""What is read of a model's parameters."""

import pytest
import torch
from torch import nn

from dsexplore.trace.recorder import record


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_parameters_are_described_once_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3, bias=False), nn.Linear(3, 2, bias=False))
    with record() as trace:
        model(torch.ones(1, 5))
    described = list(trace.parameters.select("module", "global_shape").iter_rows())
    assert described == [("Sequential.0", [3, 5]), ("Sequential.1", [2, 3])]
