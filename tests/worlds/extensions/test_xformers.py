"""The stand-ins of xformers equal plain torch, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.testing import assert_close

from dsexplore._internal.worlds.extensions.xformers import EXTENSIONS

OPS: Any = {name.removeprefix("ops."): value for name, value in EXTENSIONS["xformers"].items()}
MASKS: Any = {name.removeprefix("fmha.attn_bias."): value for name, value in OPS.items() if "attn_bias" in name}


def attended(q: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Compute torch's attention of tensors (batch, length, heads, width)."""
    x = q.transpose(1, 2)
    return scaled_dot_product_attention(x, x, x, attn_mask=mask).transpose(1, 2)


BLOCKS = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).bool()


@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        (None, None),
        (MASKS["LowerTriangularMask"](), torch.ones(7, 7).bool().tril()),
        (MASKS["BlockDiagonalMask"].from_seqlens([3, 4]), BLOCKS),
        (MASKS["BlockDiagonalCausalMask"].from_seqlens([3, 4]), BLOCKS.tril()),
        (MASKS["BlockDiagonalMask"].from_seqlens([3, 4]).make_local_attention(2), BLOCKS.tril().triu(-1)),
        (torch.arange(49.0).view(1, 1, 7, 7) / 49, torch.arange(49.0).view(1, 1, 7, 7) / 49),
    ],
)
def test_attention_with_each_mask(bias: Any, mask: torch.Tensor | None) -> None:
    q = torch.randn(1, 7, 4, 8, requires_grad=True)
    out, expected = OPS["memory_efficient_attention"](q, q, q, attn_bias=bias), attended(q, mask)
    assert_close(out, expected)
    direction = torch.randn_like(out)
    assert_close(torch.autograd.grad(out, q, direction), torch.autograd.grad(expected, q, direction))


def test_attention_of_fewer_and_more_dims() -> None:
    q = torch.randn(2, 7, 4, 8)
    expected = attended(q, None)
    attend = OPS["memory_efficient_attention"]
    assert_close(attend(q[:, :, 0], q[:, :, 0], q[:, :, 0]), expected[:, :, 0])
    groups = q.unflatten(2, (2, 2))
    assert_close(attend(groups, groups, groups), expected.unflatten(2, (2, 2)))


def test_batches_are_packed_and_split() -> None:
    batches = [torch.randn(2, 3, 4), torch.randn(1, 5, 4)]
    mask, packed = MASKS["BlockDiagonalMask"].from_tensor_list(batches)
    assert packed.shape == (1, 11, 4)
    for part, batch in zip(mask.split(packed), batches, strict=True):
        assert_close(part, batch)


def test_a_mask_is_added_to_scores() -> None:
    added = MASKS["LowerTriangularMask"]().materialize((1, 1, 2, 2))
    assert added.tolist() == [[[[0.0, float("-inf")], [0.0, 0.0]]]]


@pytest.mark.parametrize("packed", [True, False])
def test_swiglu(packed: bool) -> None:
    layer = OPS["SwiGLU"](4, 6, _pack_weights=packed)
    first, second = layer.w12.weight.chunk(2) if packed else (layer.w1.weight, layer.w2.weight)
    of_first, of_second = layer.w12.bias.chunk(2) if packed else (layer.w1.bias, layer.w2.bias)
    x = torch.randn(3, 4)
    expected = layer.w3(silu(x @ first.T + of_first) * (x @ second.T + of_second))
    assert_close(layer(x), expected)
    weights = (first, of_first, second, of_second, layer.w3.weight, layer.w3.bias)
    assert_close(OPS["swiglu"](x, *weights), expected)


def test_ops_can_be_named() -> None:
    assert torch.ops.xformers_flash.flash_fwd.default
