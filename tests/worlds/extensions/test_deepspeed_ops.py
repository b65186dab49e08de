"""The ops of DeepSpeed's optimizers equal torch's optimizers; `make frameworks` runs them with DeepSpeed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.extensions.deepspeed_ops import EXTENSIONS
from dsexplore._internal.worlds.simulate import simulate

OPS: Any = {name.rpartition(".")[2]: names for name, names in EXTENSIONS.items()}
BUILDER = """\
class OpBuilder:
    def __init__(self, name):
        self._name = name

    def absolute_name(self):
        return self._name

    def load(self, verbose=True):
        return "compiled"
"""
FLAG = torch.zeros(1, dtype=torch.int32)


def steps(optimizer: Any, weight: nn.Parameter) -> Tensor:
    """Return the weight after three steps of torch's."""
    for step in range(3):
        weight.grad = torch.tensor([1.0, -2.0, 3.0]) * (step + 1)
        optimizer.step()
    return weight.detach()


def ours(update: Any) -> Tensor:
    """Return the weight after three steps."""
    weight, states = torch.ones(3), (torch.zeros(3), torch.zeros(3))
    for step in range(3):
        update(step + 1, weight, torch.tensor([1.0, -2.0, 3.0]) * (step + 1), *states)
    return weight


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam(decoupled: bool) -> None:
    weight = nn.Parameter(torch.ones(3))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    expected = steps(kind([weight], lr=0.1, weight_decay=0.1), weight)
    fused = OPS["fused_adam_op"]["multi_tensor_adam"]
    options = (0.1, 0.9, 0.999, 1e-8)

    def on_gpu(step: int, weight: Tensor, gradient: Tensor, *states: Tensor) -> None:
        lists = [[gradient], [weight], *([state] for state in states)]
        fused(65536, FLAG, lists, *options, step, int(decoupled), 1, 0.1)

    assert_close(ours(on_gpu), expected)
    on_cpu = OPS["cpu_adam_op"]
    on_cpu["create_adam"](7, *options, 0.1, decoupled, False)
    assert_close(ours(lambda step, *tensors: on_cpu["adam_update"](7, step, *options, 0.1, True, *tensors)), expected)
    on_cpu["destroy_adam"](7)


def test_adagrad_and_lion() -> None:
    weight = nn.Parameter(torch.ones(3))
    expected = steps(torch.optim.Adagrad([weight], lr=0.1, eps=1e-8), weight)
    adagrad = OPS["cpu_adagrad_op"]["adagrad_update"]
    assert_close(ours(lambda step, w, g, square, _: adagrad(0, step, 0.1, 1e-8, 0.0, w, g, square)), expected)
    lion = OPS["cpu_lion_op"]["lion_update"]
    after = ours(lambda step, w, g, average, _: lion(0, step, 0.1, 0.9, 0.99, 0.0, w, g, average))
    assert_close(after, torch.tensor([0.7, 1.3, 0.7]))  # by the sign alone


def test_lamb_steps_by_the_norm_of_the_parameter() -> None:
    weight, gradient = torch.ones(4), torch.full((4,), 2.0)
    ratio = OPS["fused_lamb_op"]["lamb"](
        *(weight, torch.empty(0), torch.zeros(4), torch.zeros(4), gradient),
        *(0.1, 0.9, 0.999, 10.0, 0.01, 0.0, 1.0, 1, 1, 0, 0.0),
    )
    update = 0.1 * 2 / (0.001**0.5 * 2)
    assert_close(ratio, torch.tensor(1 / update))
    assert_close(weight, torch.full((4,), 0.9))


def test_deepspeed_loads_them_rather_than_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deepspeed"
    for each in (folder, folder / "ops", folder / "ops" / "op_builder", folder / "ops" / "adam"):
        each.mkdir()
        (each / "__init__.py").touch()
    (folder / "ops" / "op_builder" / "builder.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    with simulate(2), commtrace() as trace:
        builder = import_module("deepspeed.ops.op_builder.builder")
        op = builder.OpBuilder("deepspeed.ops.adam.fused_adam_op").load()
        assert op.multi_tensor_adam is OPS["fused_adam_op"]["multi_tensor_adam"]
        assert builder.OpBuilder("deepspeed.ops.aio.async_io_op").load() == "compiled"
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]
    assert any("fused_adam_op is not installed: a stand-in" in note for note in trace.info.notes)
