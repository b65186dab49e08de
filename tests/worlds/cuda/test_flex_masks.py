"""FlexAttention runs under the CUDA stand-in; its block masks are on the device that the call names.

Modules: ``worlds/cuda/tensor_construction.py``.
"""

import warnings

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in
from dsexplore._internal.worlds.simulate import simulate


def causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def test_a_mask_is_on_the_device_that_it_is_made_for() -> None:
    with cuda_stand_in(ranks_per_node=2):
        devices = [
            create_block_mask(causal, None, None, 128, 128, **on).kv_num_blocks.device
            for on in ({"device": "cuda:1"}, {}, {"device": "cpu"})
        ]
    assert devices == [torch.device("cuda:1"), torch.device("cuda:0"), torch.device("cpu")]


def test_forward_and_backward_are_those_of_plain_attention() -> None:
    with simulate(1, hardware="h100"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        mask = create_block_mask(causal, 2, None, 128, 128, device="cuda")
        query = torch.randn(2, 4, 128, 16, device="cuda", requires_grad=True)
        key, value = (torch.randn(2, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(2))
        tensors = (query, key, value)
        flexible = torch.compile(flex_attention)(query, key, value, block_mask=mask, enable_gqa=True)
        plain = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        of_flexible = torch.autograd.grad(flexible.square().sum(), tensors)
        of_plain = torch.autograd.grad(plain.square().sum(), tensors)
        assert flexible.is_cuda
    torch.testing.assert_close(flexible, plain)
    torch.testing.assert_close(of_flexible, of_plain, atol=1e-5, rtol=1e-5)
    assert [str(one.message).partition(" does nothing")[0] for one in said] == ["torch.compile"]
