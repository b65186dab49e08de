"""`commtrace(numerics=True)`: which tensors are summarized, in which step and phase, and that nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore import Trace, UsageError
from dsexplore._internal.trace import schema


class Twice(nn.Module):
    """Calls one layer twice, and returns a whole number beside a tensor."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.layer, self.recomputes = nn.Linear(4, 4), recomputes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        again = checkpoint(self.layer, x, use_reentrant=False) if self.recomputes else self.layer(x)
        return self.layer(again), torch.zeros(2, dtype=torch.long)


def trained(model: nn.Module, steps: int = 2, *, marks: bool = False) -> Trace:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(3, 4)
    with dsexplore.commtrace(numerics=True) as trace:
        for _ in range(steps):
            model(data)[0].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if marks:
                trace.step()
    return trace


def rows_of(trace: Trace, step: int) -> list[tuple[str, str, str, int]]:
    return trace.numerics.filter(pl.col("step") == step).select("phase", "module", "name", "call").rows()


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_each_step_has_outputs_their_gradients_and_those_of_parameters(recomputes: bool, marks: bool) -> None:
    trace = trained(Twice(recomputes), marks=marks)
    expected = [
        ("forward", "Twice.layer", "output", 0),
        ("forward", "Twice.layer", "output", 1),
        ("forward", "Twice", "output", 0),
        ("backward", "Twice.layer", "output", 1),
        ("backward", "Twice", "output", 0),
        ("backward", "Twice.layer", "output", 0),
        ("gradient", "Twice.layer", "weight", 0),
        ("gradient", "Twice.layer", "bias", 0),
    ]
    assert [rows_of(trace, step) for step in (0, 1)] == [expected, expected]
    assert trace.numerics["count"].to_list() == [12, 12, 12, 12, 12, 12, 16, 4] * 2


def test_a_wrapper_and_the_module_inside_return_one_output() -> None:
    compiled = torch.compile(nn.Linear(4, 4))
    with torch.compiler.set_stance("force_eager"), dsexplore.commtrace(numerics=True) as trace:
        compiled(torch.randn(2, 4))
    assert trace.numerics["module"].to_list() == ["Linear"]


def test_summaries_are_saved_and_read(tmp_path: Path) -> None:
    trace = trained(Twice())
    loaded = dsexplore.load(trace.save(tmp_path / "step.parquet"))
    assert loaded.numerics.equals(trace.numerics)
    assert dict(loaded.numerics.schema) == schema.NUMERICS
    assert trace.diff(loaded).numerics().same_bits


def test_a_trace_without_summaries_has_none() -> None:
    with dsexplore.commtrace() as trace:
        nn.Linear(2, 2)(torch.zeros(1, 2))
    assert trace.numerics.is_empty()
    with pytest.raises(UsageError, match=r"commtrace\(numerics=True\)"):
        trace.diff(trace).numerics()


def test_simulated_ranks_are_refused() -> None:
    with (
        pytest.raises(UsageError, match=r"numerics=True on 2 simulated ranks"),
        dsexplore.commtrace(world_size=2, numerics=True),
    ):
        pass
