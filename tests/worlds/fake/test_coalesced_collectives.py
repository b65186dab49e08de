"""Collectives that torch coalesces run on fake tensors, and are recorded as on tensors with memory.

Modules: ``worlds/fake/fake_dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from dsexplore._internal.capture.record import record
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.simulate import simulate

OPS = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)


def all_reduces() -> None:
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3))


def all_gathers() -> None:
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_gather_into_tensor(torch.ones(8), torch.ones(2))
        dist.all_gather_into_tensor(torch.ones(12, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))


def reduce_scatters() -> None:
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(8))
        dist.reduce_scatter_tensor(torch.ones(1), torch.ones(4))
    manager.wait()


def all_gathers_of_lists() -> None:
    dist.all_gather_coalesced([[torch.ones(2), torch.ones(3)] for _ in range(4)], [torch.ones(2), torch.ones(3)])


def recorded(call: Callable[[], None], *, fake: bool) -> Trace:
    with simulate(world_size=4, fake=fake), record() as trace:
        call()
        call()
    return trace


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("call", [all_reduces, all_gathers, reduce_scatters, all_gathers_of_lists])
def test_events_are_those_of_tensors_with_memory(call: Callable[[], None]) -> None:
    fake = recorded(call, fake=True)
    assert len(fake) == 4
    assert fake.events["message_bytes"].min() > 0
    assert fake.events.drop("group").equals(recorded(call, fake=False).events.drop("group"))


def test_torch_is_left_as_it_was() -> None:
    def with_meta() -> list[str]:
        return [op for op in OPS if torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{op}", "Meta")]

    before = with_meta()
    with simulate(world_size=2, fake=True):
        assert with_meta() == list(OPS)
    assert with_meta() == before
