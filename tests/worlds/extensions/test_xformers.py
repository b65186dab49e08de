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


def test_log_sum_exp_of_fewer_and_more_dims() -> None:
    q, bias = torch.randn(2, 7, 4, 8), torch.randn(2, 4, 7, 7)
    with_lse = OPS["memory_efficient_attention_forward_requires_grad"]
    scores = torch.einsum("bqhw,bkhw->bhqk", q, q) / 8**0.5
    expected = (scores + bias).logsumexp(-1)
    assert_close(with_lse(q, q, q, bias)[1], expected)
    assert_close(with_lse(*[q[:, :, 0]] * 3, bias[:, 0])[1], expected[:, :1])
    in_groups = expected.unflatten(1, (2, 2))
    assert_close(with_lse(*[q.unflatten(2, (2, 2))] * 3, bias.unflatten(1, (2, 2)))[1], in_groups)


def test_batches_are_packed_and_split() -> None:
    batches = [torch.randn(2, 3, 4), torch.randn(1, 5, 4)]
    mask, packed = MASKS["BlockDiagonalMask"].from_tensor_list(batches)
    assert packed.shape == (1, 11, 4)
    for part, batch in zip(mask.split(packed), batches, strict=True):
        assert_close(part, batch)


FROM_FIRST = [[1, 0, 0, 0], [1, 1, 0, 0]]
FROM_LAST = [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("mask", "second"),
    [
        (MASKS["BlockDiagonalMask"].from_seqlens([1, 2], [1, 4]), [[1] * 4] * 2),
        (MASKS["BlockDiagonalCausalMask"].from_seqlens([1, 2], [1, 4]), FROM_FIRST),
        (MASKS["BlockDiagonalCausalFromBottomRightMask"].from_seqlens([1, 2], [1, 4]), FROM_LAST),
        (MASKS["BlockDiagonalMask"].from_seqlens([1, 2], [1, 4]).make_causal(), FROM_FIRST),
        (MASKS["BlockDiagonalMask"].from_seqlens([1, 2], [1, 4]).make_causal_from_bottomright(), FROM_LAST),
        (
            MASKS["BlockDiagonalMask"].from_seqlens([1, 2], [1, 4]).make_local_attention(1),
            [[1, 0, 0, 0], [0, 1, 0, 0]],
        ),
        (
            MASKS["BlockDiagonalMask"].from_seqlens([1, 2], [1, 4]).make_local_attention_from_bottomright(2),
            [[0, 1, 1, 0], [0, 0, 1, 1]],
        ),
    ],
)
def test_packed_masks_of_more_keys_than_queries(mask: Any, second: list[list[int]]) -> None:
    expected = torch.block_diag(torch.ones(1, 1), torch.tensor(second)).bool()
    assert_close(mask.materialize((3, 5), dtype=torch.bool), expected)
    q, k = torch.randn(1, 3, 2, 8), torch.randn(1, 5, 2, 8)
    x, y = q.transpose(1, 2), k.transpose(1, 2)
    out = OPS["memory_efficient_attention"](q, k, k, attn_bias=mask)
    assert_close(out, scaled_dot_product_attention(x, y, y, attn_mask=expected).transpose(1, 2))


@pytest.mark.parametrize(
    ("name", "expected"), [("LowerTriangularMask", FROM_FIRST), ("LowerTriangularFromBottomRightMask", FROM_LAST)]
)
def test_causal_masks_of_more_keys_than_queries(name: str, expected: list[list[int]]) -> None:
    assert_close(MASKS[name]().materialize((2, 4), dtype=torch.bool), torch.tensor(expected).bool())


def test_causal_masks_have_the_classes_of_xformers() -> None:
    mask = MASKS["BlockDiagonalMask"].from_seqlens([3, 4])
    assert isinstance(mask.make_causal_from_bottomright(), MASKS["BlockDiagonalCausalFromBottomRightMask"])
    assert not isinstance(mask.make_causal_from_bottomright(), MASKS["BlockDiagonalCausalMask"])


def test_fewer_keys_than_queries_cannot_be_aligned_at_the_last_key() -> None:
    with pytest.raises(ValueError, match="2 queries but 1 keys"):
        MASKS["BlockDiagonalMask"].from_seqlens([3, 2], [3, 1]).make_causal_from_bottomright()


def test_a_bias_is_added_to_a_causal_mask() -> None:
    bias = torch.arange(8.0).view(1, 2, 2, 2)
    mask = MASKS["LowerTriangularMask"]().add_bias(bias)
    expected = bias.masked_fill(~torch.ones(2, 2).bool().tril(), float("-inf"))
    assert_close(mask.materialize((1, 2, 2, 2)), expected)
    q = torch.randn(1, 2, 2, 8)
    assert_close(OPS["memory_efficient_attention"](q, q, q, attn_bias=mask), attended(q, expected))


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
