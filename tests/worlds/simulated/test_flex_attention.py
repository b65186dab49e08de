"""FlexAttention runs in every simulated world, compiled by the program or not.

Modules: ``worlds/simulated/attention.py``.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate


@pytest.mark.filterwarnings("error:.*flex_attention")
@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_shapes_and_devices(device: str, fake: bool, costs: bool) -> None:
    with simulate(4, fake=fake, hardware="h100" if device == "cuda" else None), record(costs=costs):
        query, key, value = (torch.ones(1, 2, 128, 16, device=device) for _ in range(3))
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 2, 128, 128, device=device)
        made = flex_attention(query, key, value, block_mask=mask)
        assert isinstance(made, torch.Tensor)
        assert (made.shape, made.device.type) == (query.shape, device)


@pytest.mark.parametrize("fake", [False, True])
def test_backward_on_a_simulated_gpu(fake: bool) -> None:
    with simulate(4, fake=fake, hardware="h100"):
        query = torch.ones(1, 2, 128, 16, device="cuda", requires_grad=True)
        made = flex_attention(query, query.detach(), query.detach())
        assert isinstance(made, torch.Tensor)
        made.sum().backward()
        assert query.grad is not None
        assert (query.grad.shape, query.grad.device.type) == (query.shape, "cuda")


def test_torch_compiles_it_again_afterwards() -> None:
    with simulate(4):
        assert torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    assert not torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
