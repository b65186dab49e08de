"""The CUDA stand-in of a simulated world starts at the first use of ``cuda``, of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dsexplore
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs that are here answer")
CUDA = torch.device("cuda", 0)

MAKERS: dict[str, Callable[[], Any]] = {
    "a factory": lambda: torch.ones(2, device="cuda"),
    "a random factory": lambda: torch.randn(2, device=CUDA),
    "a like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "a list": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1.0], device=CUDA),
    "to": lambda: torch.ones(2, requires_grad=True).to("cuda"),
    "to a number": lambda: torch.ones(2).to(0),
    "cuda": lambda: torch.ones(2).cuda(),
    "a module": lambda: nn.Linear(2, 2).cuda().weight,
    "a module made there": lambda: nn.Linear(2, 2, device="cuda").weight,
    "to_empty": lambda: nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
}


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_tensor_that_is_first_made_or_moved_there(make: Callable[[], Any], fake: bool) -> None:
    with simulate(2, fake=fake) as mesh:
        made = make()
        assert (made.device, made.is_cuda) == (CUDA, True)
        assert (made + made).device == CUDA
        assert torch.ones(2).device.type == "cpu"
        assert mesh.device_type == "cuda"
    assert torch.ones(2).device.type == "cpu"


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda: torch.cuda.is_available(), True),
        (lambda: torch.cuda.device_count(), 8),
        (lambda: torch.cuda.set_device(1) or torch.cuda.current_device(), 1),
        (lambda: torch.accelerator.is_available(), True),
        (lambda: torch.version.cuda is not None, True),
    ],
    ids=["is_available", "device_count", "set_device", "accelerator", "version"],
)
def test_a_question(ask: Callable[[], Any], answer: Any) -> None:
    with dsexplore.commtrace(world_size=8):
        assert ask() == answer
    assert not torch.cuda.is_available()


def test_a_block_that_is_open_then_ends_as_it_would() -> None:
    with simulate(2):
        with torch.device("cuda"):
            assert torch.ones(2).device == CUDA
        assert torch.ones(2).device.type == "cpu"


def test_a_mesh_and_its_backend() -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        assert dist.get_backend() == "fake"
        mesh = init_device_mesh("cuda", (4,))
        assert (mesh.device_type, dist.get_backend()) == ("cuda", "nccl")
        model = fully_shard(nn.Linear(8, 8), mesh=mesh)
        assert next(model.parameters()).device.type == "cuda"
        model(torch.ones(2, 8, device="cuda")).sum().backward()
    assert trace.events["op"].to_list() == ["all_gather", "reduce_scatter"]


def test_a_program_without_it_finds_torch_as_it_is() -> None:
    kind, to = type(torch.cuda), torch.Tensor.to
    with simulate("dp=2,tp=2") as mesh:
        model = fully_shard(nn.Linear(8, 8), mesh=mesh)
        model(torch.ones(2, 8)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
        torch.manual_seed(0)
        assert not hasattr(torch.Tensor, "_dsexplore_cuda_device")
        assert mesh.device_type == "cpu"
    assert (type(torch.cuda), torch.Tensor.to) == (kind, to)


def test_cpus_answer_as_cpus() -> None:
    with simulate(2, hardware="cpu"):
        assert not torch.cuda.is_available()


@pytest.mark.parametrize("asker", ["torch._inductor.utils", "triton.backends.amd.driver", "typeguard"])
def test_a_question_of_a_library_that_only_looks_is_no_use(asker: str) -> None:
    """Compilers read ``torch.cuda`` while torch runs; what torch has read before must stay true."""
    with dsexplore.commtrace(world_size=2):
        asked = eval("torch.version.hip, torch.cuda.is_available()", {"torch": torch, "__name__": asker})
        assert asked == (None, False)
        assert torch.cuda.is_available()
