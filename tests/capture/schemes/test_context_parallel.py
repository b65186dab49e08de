"""Context parallelism: ring attention's rotations of keys and values, and of their gradients.

Modules: ``capture/stack/stack_reading.py``, ``capture/modules/autograd_nodes.py``.

Symbols: n ranks; K = 2·B·T·D·e the bytes of one rank's keys and values, T the sequence on that rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method

from dsexplore._internal.capture.record import record

RANKS = 4


@pytest.fixture(autouse=True)
def default_rotation() -> Iterator[None]:
    """Put torch's way of rotating keys and values back."""
    yield
    set_rotate_method("allgather")


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("method", ["alltoall", "allgather"])
def test_ring_attention(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any, method: str, fake: bool
) -> None:
    """Forward: n − 1 rotations of K by all_to_all, or one all_gather of n·K. Backward: the same again, and n
    rotations of the gradients of keys and values, K each, by all_to_all in either way."""
    mesh = world(f"cp={RANKS}", fake=fake)
    set_rotate_method(method)
    model = block()
    x = torch.zeros(sizes.batch, sizes.seq, sizes.d, requires_grad=True)
    with record() as trace, context_parallel(mesh, buffers=[torch.zeros(1, 64)], buffer_seq_dims=[1]):
        model(x).sum().backward()

    kv = 2 * sizes.tokens * sizes.d * sizes.float
    expected = {("backward", "all_to_all"): (RANKS, RANKS * kv)}
    if method == "alltoall":
        expected["forward", "all_to_all"] = (RANKS - 1, (RANKS - 1) * kv)
        expected["backward", "all_to_all"] = (2 * RANKS - 1, (2 * RANKS - 1) * kv)
    else:
        expected["forward", "all_gather"] = expected["backward", "all_gather"] = (1, RANKS * kv)
    assert totals(trace, "phase", "op") == expected
    assert set(trace.events["owner"]) == {"Block.attn"}
    assert set(trace.events["axis"]) == {"cp"}
    forward, backward = (set(trace.where(phase=phase).events["cause"]) for phase in ("forward", "backward"))
    assert forward == {"aten._scaled_dot_product_flash_attention"}
    assert backward == {"aten._scaled_dot_product_flash_attention_backward"}


class Gathering(nn.Module):
    """Gather keys and values as context parallelism does around flex attention."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group().group_name
        self.ops = pytest.importorskip(
            "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops",
            reason="torch 2.9 gathers for flex attention inside of torch.compile alone",
        )

    def forward(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = self.ops.flex_cp_allgather(key, value, 2, self.group)
        return keys * values


def test_gathering_for_flex_attention(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """Forward 2 all_gather, backward 2 reduce_scatter, each of n·K/2."""
    model = Gathering(world(f"cp={RANKS}"))
    key, value = (torch.ones(sizes.batch, 1, sizes.seq, sizes.d, requires_grad=True) for _ in range(2))
    with record() as trace:
        model(key, value).sum().backward()
    both = (2, 2 * RANKS * sizes.tokens * sizes.d * sizes.float)
    assert totals(trace, "phase", "op", "trigger") == {
        ("forward", "all_gather", "Gathering"): both,
        ("backward", "reduce_scatter", "Gathering"): both,
    }
