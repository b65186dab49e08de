"""DDP's reducer in C++ sends on fake tensors the collectives that it sends on real ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.worlds.fake.fake_dispatch import SimulationMode
from dsexplore._internal.worlds.simulate import simulate

RANKS, STEPS = 4, 4
OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
NO_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in OPTIONS else "broadcast_buffers"
Sent = list[tuple[Any, ...]]


class Network(nn.Module):
    """Two linear layers and buffers, one layer that every second step uses, and one that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)
        self.at_times, self.never = nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, at_times: bool) -> torch.Tensor:
        x = self.last(self.norm(self.first(x)).relu())
        return self.at_times(x) if at_times else x


def all_used() -> nn.Module:
    model = Network()
    model.never.requires_grad_(False)
    return model


def train(prepare: Callable[[DistributedDataParallel], None], device: str, **options: Any) -> None:
    changes, is_static = "find_unused_parameters" in options, "static_graph" in options
    network = Network() if changes or is_static else all_used()
    ddp = DistributedDataParallel(network.to(device), **options)
    prepare(ddp)
    optimizer = torch.optim.AdamW(ddp.parameters())
    for step in range(STEPS):
        used = not changes or step % 2 == 0
        batch = torch.randn(6, 16, device=device)
        if step == 2 and not is_static:
            with ddp.no_sync():
                ddp(batch, used).sum().backward()
        ddp(batch, used).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def sent(fake: bool, program: Callable[[], object], **world: Any) -> Sent:
    with simulate(RANKS, fake=fake, **world), record() as trace:
        program()
    return trace.events.drop("group", "start", "end").rows()


def nothing(_ddp: DistributedDataParallel) -> None: ...


def hooked(hook: Callable[..., Any], state: Callable[[], object] = lambda: None) -> Any:
    return lambda ddp: ddp.register_comm_hook(state(), hook)


@pytest.mark.filterwarnings("ignore:.*find_unused_parameters")
@pytest.mark.parametrize(
    ("prepare", "options", "device"),
    [
        pytest.param(nothing, {}, "cuda", id="as it is"),
        pytest.param(nothing, {"bucket_cap_mb": 0.002}, "cpu", id="many buckets"),
        pytest.param(
            nothing, {"bucket_cap_mb": 0.002, "find_unused_parameters": True}, "cuda", id="find_unused_parameters"
        ),
        pytest.param(
            nothing, {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True}, "cpu", id="gradient_as_bucket_view"
        ),
        pytest.param(nothing, {"bucket_cap_mb": 0.002, "static_graph": True}, "cpu", id="static_graph"),
        pytest.param(nothing, {"init_sync": False, NO_BUFFERS: False}, "cpu", id="no start-up, no buffers"),
        pytest.param(hooked(default_hooks.fp16_compress_hook), {}, "cpu", id="fp16 hook"),
        pytest.param(hooked(default_hooks.bf16_compress_hook), {}, "cpu", id="bf16 hook"),
        pytest.param(
            hooked(powerSGD_hook, lambda: PowerSGDState(None, 1, start_powerSGD_iter=2)), {}, "cuda", id="PowerSGD hook"
        ),
        pytest.param(
            lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE), {}, "cpu", id="built in"
        ),
    ],
)
def test_fake_tensors_send_the_same(
    prepare: Callable[[DistributedDataParallel], None], options: dict[str, Any], device: str
) -> None:
    program = functools.partial(train, prepare, device, **options)
    real = sent(False, program, hardware="h100" if device == "cuda" else None)
    assert len(real) > STEPS
    assert sent(True, program, hardware="h100" if device == "cuda" else None) == real


def test_what_has_memory_is_forgotten_with_it() -> None:
    with SimulationMode() as mode:
        for _ in range(3):
            with mode.integers.created():
                made = torch.zeros(3, dtype=torch.int32)
            assert type(made) is type(made[0]) is torch.Tensor
            made[1].fill_(5)
            assert made.tolist() == [0, 5, 0]
            assert isinstance(torch.zeros(3, dtype=torch.int32), FakeTensor)
        assert len(mode.integers._storages) == 1  # of the last tensor, which is there


def test_everything_is_put_back() -> None:
    def state() -> list[Any]:
        reducer = vars(dist.Reducer)
        return [DistributedDataParallel.__init__, reducer["_rebuild_buckets"], reducer["_set_static_graph"]]

    before = state()
    with pytest.raises(KeyboardInterrupt), simulate(2, fake=True):
        assert state() != before
        raise KeyboardInterrupt
    assert state() == before
