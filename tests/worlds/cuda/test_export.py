"""`torch.export` works under the CUDA stand-in; the model and the exported program are on ``cuda``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.cuda.export import NOT_STRICT
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

PIPELINE = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(100, 32), nn.Embedding(16, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.out = nn.Linear(32, 10)

    def forward(self, tokens):
        assert tokens.is_cuda and self.out.weight.is_cuda
        x = self.embed(tokens) + self.places(torch.arange(16, device=tokens.device)) + torch.ones(32, device="cuda")
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
tokens = torch.randint(0, 100, (8, 16), device=device)
pipe = pipeline(Model().to(device), (tokens.chunk(4)[0],), split_spec={"layers.2": SplitPoint.BEGINNING})
stage = pipe.build_stage(rank, device)
loss = lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
schedule = ScheduleGPipe(stage, 4, loss_fn=loss)
optimizer = torch.optim.SGD(stage.submod.parameters(), 0.1)
if rank == 0:
    schedule.step(tokens)
else:
    schedule.step(target=torch.zeros(8, 16, dtype=torch.long, device=device))
optimizer.step()
"""


class Model(nn.Module):
    """Asserts that its inputs and its results are on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(10, 4), nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.is_cuda
        assert self.embed.weight.device == self.scale.device == torch.device("cuda", 0)
        offset = torch.arange(4, device=tokens.device) + torch.zeros(4, device="cuda")
        return self.norm(self.embed(tokens) * self.scale + offset)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return the path of a script that runs the pipeline."""
    path = tmp_path / "train.py"
    path.write_text(PIPELINE)
    return path


@pytest.mark.parametrize(("rank", "fake"), [(0, False), (1, True)])
def test_a_traced_pipeline_sends_what_its_microbatches_are(script: Path, rank: int, fake: bool) -> None:
    sent = dsexplore.run(script, world_size=2, rank=rank, fake=fake).headline().steady.events
    assert sent["message_bytes"].to_list() == [4 * 2 * 16 * 32] * 8  # activations, and their gradients
    assert sorted(sent["op"]) == ["recv"] * 4 + ["send"] * 4


def test_an_exported_program_runs_and_its_gradients_are_on_the_gpu() -> None:
    with cuda_stand_in():
        model, tokens = Model().cuda(), torch.randint(0, 10, (2, 3), device="cuda")
        program = torch.export.export(model, (tokens,)).module()
        out = program(tokens)
        out.square().sum().backward()
        assert out.device == model.embed.weight.grad.device == torch.device("cuda", 0)
        model.eval()
        assert torch.equal(torch.export.export(model, (tokens,)).module()(tokens), model(tokens))
        assert "forward" not in vars(model)


def test_a_strict_export_is_traced_alike_and_said() -> None:
    with cuda_stand_in(), pytest.warns(RuntimeWarning, match=re.escape(NOT_STRICT)):
        model, tokens = Model().cuda(), torch.randint(0, 10, (2, 3), device="cuda")
        assert torch.export.export(model, (tokens,), strict=True).module()(tokens).is_cuda


@pytest.mark.skipif(not torch_at_least("2.12"), reason="up to torch 2.11 an export that fails leaves a hook")
def test_what_cannot_be_exported_raises_as_torch_does_and_leaves_the_model() -> None:
    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    model = Refusing()
    with cuda_stand_in():
        with pytest.raises(Exception, match=r"data-dependent|guard"):
            torch.export.export(model, (torch.ones(2, device="cuda"),))
        with pytest.raises(ValueError, match=r"nn\.Module"):
            torch.export.export(3, (torch.ones(2),))  # type: ignore[arg-type]
        assert torch.ones(2, device="cuda").is_cuda
    assert not {"forward"} & {*vars(model)}


def test_a_fake_tensor_of_a_parameter_on_a_gpu_has_a_gradient() -> None:
    with cuda_stand_in():
        mode = FakeTensorMode()
        weight = mode.from_tensor(nn.Linear(3, 2, device="cuda").weight)
        with mode:
            (weight * 2).sum().backward()
        assert weight.device == weight.grad.device == torch.device("cuda", 0)
