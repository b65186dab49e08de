"""By default, optimizers on a simulated GPU use foreach ops, and need the memory for them."""

from __future__ import annotations

import polars as pl
import pytest
import torch
import torch.optim.optimizer as optimizers
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

import dsexplore
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.world_settings import Target


def trained(target: Target, *, fake: bool, foreach: bool | None = None, device: str = "cpu") -> Trace:
    hardware = "cpu" if target == "cpu" else "h100" if device == "cuda" else None
    with dsexplore.simulate(1, hardware=hardware, fake=fake):
        model = nn.Sequential(*(nn.Linear(128, 128, bias=False, device=device) for _ in range(32)))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        with dsexplore.commtrace(costs=True) as trace:
            for _ in range(2):
                model(torch.ones(1, 128, device=device)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                trace.step()
    return trace


def ops(trace: Trace) -> set[str]:
    return set(trace.tables.kernels.filter(pl.col("phase") == "optimizer")["op"])


@pytest.mark.parametrize(("fake", "device"), [(True, "cuda"), (False, "cuda"), (True, "cpu"), (False, "cpu")])
def test_lists_of_parameters_are_updated_at_once(fake: bool, device: str) -> None:
    trace = trained("cuda", fake=fake, device=device)
    assert "_foreach_addcdiv_" in ops(trace)
    assert "addcdiv_" in ops(trained("cuda", fake=fake, device=device, foreach=False))


def test_intermediate_results_take_as_much_as_the_parameters() -> None:
    loop, lists = (trained("cuda", fake=True, foreach=foreach).predict().memory for foreach in (False, None))
    parameters = 32 * 128 * 128 * 4
    assert lists - loop == pytest.approx(parameters, rel=0.2)


def test_the_target_cpu_keeps_torch_s_loop_and_all_is_put_back() -> None:
    before = _get_foreach_kernels_supported_devices(), list(optimizers._foreach_supported_types)
    assert "addcdiv_" in ops(trained("cpu", fake=False))
    trained("cuda", fake=True)
    assert (_get_foreach_kernels_supported_devices(), list(optimizers._foreach_supported_types)) == before


def test_dtensors_mixed_with_plain_tensors_are_updated_one_by_one_and_a_remark_says_so() -> None:
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(output_layouts=Replicate())})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 8)).sum().backward()
        with dsexplore.commtrace(costs=True) as trace, pytest.warns(RuntimeWarning, match="foreach=False"):
            optimizer.step()
        assert "_foreach_add_" not in ops(trace)
        assert any("plain tensors" in note for note in trace.info.notes)
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):  # as on a GPU
            torch.optim.SGD(model.parameters(), lr=0.1, foreach=True).step()
