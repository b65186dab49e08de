"""FlashAttention's stand-ins equal plain torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from dsexplore._internal.worlds.extensions.flash_attn import EXTENSIONS
from dsexplore._internal.worlds.simulate import simulate

FLASH: Any = EXTENSIONS["flash_attn"]
THIRD: Any = EXTENSIONS["flash_attn_interface"]


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Return tensors that need gradients."""
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def equal(ours: Callable[..., Tensor], plain: Callable[..., Tensor], leaves: list[Tensor]) -> None:
    """Return outputs, and the gradients of each tensor."""
    out, expected = ours(*leaves), plain(*leaves)
    assert out.dtype == expected.dtype
    assert_close(out, expected)
    direction = torch.randn_like(expected)
    for gradient, right in zip(
        torch.autograd.grad(out, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
    ):
        assert_close(gradient, right)


def written_out(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None, cap: float = 0, bias: Any = 0) -> Tensor:
    """Compute attention by its definition."""
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if cap:
        scores = cap * (scores / cap).tanh()
    scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(), v)


def places(queries: int, keys: int) -> Tensor:
    """Return how far each key is to the right of each query, whose last is at the last key."""
    return torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)


class TestAttention:
    @pytest.mark.parametrize("queries", [5, 3])
    @pytest.mark.parametrize(
        ("options", "seen"),
        [
            ({}, lambda distance: distance < 99),
            ({"causal": True}, lambda distance: distance <= 0),
            ({"window_size": (2, 1)}, lambda distance: (distance >= -2) & (distance <= 1)),
            ({"window_size": (1, -1), "causal": True}, lambda distance: (distance >= -1) & (distance <= 0)),
        ],
    )
    def test_of_batches(self, queries: int, options: dict[str, Any], seen: Callable[[Tensor], Tensor]) -> None:
        leaves = tensors((2, queries, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8))
        equal(
            lambda *each: FLASH["flash_attn_func"](*each, **options),
            lambda *each: written_out(*each, seen(places(queries, 5))),
            leaves,
        )
        equal(
            lambda *each: THIRD["flash_attn_func"](*each, **options),
            lambda *each: written_out(*each, seen(places(queries, 5))),
            leaves,
        )

    def test_with_a_cap_and_slopes(self) -> None:
        leaves = tensors((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8))
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.1])
        bias = -slopes.double().view(1, 4, 1, 1) * places(5, 5).abs()
        attend = FLASH["flash_attn_func"]
        seen = places(5, 5) <= 0
        equal(
            lambda *each: attend(*each, causal=True, alibi_slopes=slopes),
            lambda *each: written_out(*each, seen, bias=bias),
            leaves,
        )
        equal(lambda *each: attend(*each, softcap=2.0), lambda *each: written_out(*each, cap=2.0), leaves)

    def test_of_packed_batches_is_that_of_each_sequence(self) -> None:
        leaves = tensors((7, 4, 8), (9, 2, 8), (9, 2, 8))
        queries, keys = [0, 2, 7], [0, 4, 9]
        ends = [torch.tensor(each, dtype=torch.int32) for each in (queries, keys)]

        def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat(
                [
                    written_out(q[None, a:b], k[None, c:d], v[None, c:d], places(b - a, d - c) <= 0)[0]
                    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False)
                ]
            )

        for functions in (FLASH, THIRD):
            packed = functions["flash_attn_varlen_func"]
            equal(lambda *each, packed=packed: packed(*each, *ends, 5, 5, causal=True), one_by_one, leaves)

    def test_of_what_is_packed_together(self) -> None:
        leaves = tensors((2, 5, 3, 4, 8))
        equal(FLASH["flash_attn_qkvpacked_func"], lambda qkv: written_out(*qkv.unbind(2)), leaves)
        leaves = tensors((2, 5, 4, 8), (2, 5, 2, 2, 8))
        equal(FLASH["flash_attn_kvpacked_func"], lambda q, kv: written_out(q, *kv.unbind(2)), leaves)
        leaves, end = tensors((5, 3, 4, 8)), torch.tensor([0, 5])
        equal(
            lambda qkv: FLASH["flash_attn_varlen_qkvpacked_func"](qkv, end, 5),
            lambda qkv: written_out(*qkv[None].unbind(2))[0],
            leaves,
        )

    @pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 1.5}, {"window_size": (2, 1)}])
    def test_forward_and_backward_apart_are_autograds(self, options: dict[str, Any]) -> None:
        leaves = tensors((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8))
        out = FLASH["flash_attn_func"](*leaves, **options)
        direction = torch.randn_like(out)
        expected = torch.autograd.grad(out, leaves, direction)
        plain = [leaf.detach() for leaf in leaves]
        window, cap = options.get("window_size", (-1, -1)), options.get("softcap", 0.0)
        common = (0.0, None, options.get("causal", False), *window, cap, None, False)
        below, sums, *_ = FLASH["flash_attn_interface._flash_attn_forward"](*plain, *common)
        assert_close(below, out.detach())
        written = [torch.empty_like(leaf) for leaf in plain]
        FLASH["flash_attn_interface._wrapped_flash_attn_backward"](direction, *plain, below, sums, *written, *common)
        assert_close(written, [*expected])
        third, third_sums, *_ = THIRD["_flash_attn_forward"](*plain, **options)
        assert_close([third, third_sums], [below, sums])
        *written, _ = THIRD["_flash_attn_backward"](
            direction, *plain, third, third_sums, dq=written[0] * 0, dk=written[1] * 0, dv=written[2] * 0, **options
        )
        assert_close(written, [*expected])

    def test_backward_of_some_keys_with_the_sums_of_all_adds_up(self) -> None:
        leaves = tensors((2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 8))
        out, sums, _ = FLASH["flash_attn_func"](*leaves, return_attn_probs=True)
        direction = torch.randn_like(out)
        expected = torch.autograd.grad(out, leaves, direction)
        q, k, v = (leaf.detach() for leaf in leaves)
        parts = []
        for keys in (slice(0, 3), slice(3, 6)):
            written = [torch.empty_like(each) for each in (q, k[:, keys], v[:, keys])]
            some = (k[:, keys], v[:, keys], out.detach(), sums.detach(), *written)
            FLASH["flash_attn_interface._flash_attn_backward"](
                direction, q, *some, 0.0, None, False, -1, -1, 0.0, None, False
            )
            parts.append(written)
        (dq, dk, dv), (more_dq, more_dk, more_dv) = parts
        assert_close([dq + more_dq, torch.cat([dk, more_dk], 1), torch.cat([dv, more_dv], 1)], [*expected])

    def test_forward_and_backward_of_packed_batches_apart(self) -> None:
        leaves, ends = tensors((7, 4, 8), (7, 2, 8), (7, 2, 8)), torch.tensor([0, 3, 7])
        out = FLASH["flash_attn_varlen_func"](*leaves, ends, ends, 4, 4, causal=True)
        direction = torch.randn_like(out)
        plain = [leaf.detach() for leaf in leaves]
        places = (ends, ends, 4, 4, 0.0, None, True)
        below, sums, *_ = FLASH["flash_attn_interface._flash_attn_varlen_forward"](*plain, *places)
        assert (below.shape, sums.shape) == (out.shape, (4, 7))
        written = [torch.empty_like(leaf) for leaf in plain]
        FLASH["flash_attn_interface._flash_attn_varlen_backward"](
            direction, *plain, below, sums, *written, *places, -1, -1, 0.0, None, False
        )
        assert_close(written, [*torch.autograd.grad(out, leaves, direction)])

    def test_of_what_is_packed_for_the_third(self) -> None:
        packed = THIRD["flash_attn_qkvpacked_func"]
        equal(packed, lambda qkv: written_out(*qkv.unbind(2)), tensors((2, 5, 3, 4, 8)))
        equal(
            lambda qkv: packed(qkv, causal=True, num_heads_q=4),
            lambda qkv: written_out(*qkv.split([4, 2, 2], 2), places(5, 5) <= 0),
            tensors((2, 5, 8, 8)),
        )

    def test_returns_the_sums_where_asked(self) -> None:
        q, k, v = tensors((2, 5, 4, 8), (2, 5, 4, 8), (2, 5, 4, 8))
        _, lse, _ = FLASH["flash_attn_func"](q, k, v, return_attn_probs=True)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        assert_close(lse, scores.logsumexp(-1))

    def test_has_shapes_without_memory(self) -> None:
        with simulate(2, fake=True, hardware="h100"):
            q = torch.ones(7, 4, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            ends = torch.tensor([0, 3, 7], device="cuda")
            out = FLASH["flash_attn_varlen_func"](q, q, q, ends, ends, 4, 4, causal=True)
            out.sum().backward()
            assert (out.shape, out.dtype, out.device.type) == (q.shape, q.dtype, "cuda")
            assert q.grad is not None


class TestLayers:
    @pytest.mark.parametrize("interleaved", [False, True])
    def test_of_the_kernel_takes_its_own_order_and_rotates_back(self, interleaved: bool) -> None:
        rotate = FLASH["ops.triton.rotary.apply_rotary"]
        angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.1]))
        x = torch.randn(1, 5, 1, 4)
        halves = x.unflatten(-1, (2, 2))
        pairs = torch.view_as_complex((halves if interleaved else halves.mT).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones(5, 2), angles[2:7])[None, :, None])
        expected = (turned if interleaved else turned.mT).flatten(-2)
        out = rotate(x, angles.cos(), angles.sin(), 2, None, None, interleaved)
        assert_close(out, expected)
        assert_close(rotate(out, angles.cos(), angles.sin(), 2, interleaved=interleaved, conjugate=True), x)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_rotation_is_that_of_complex_numbers(self, interleaved: bool) -> None:
        (x,) = leaves = tensors((2, 5, 3, 8))
        angles = torch.randn(9, 3, dtype=torch.float64)

        def plain(x: Tensor) -> Tensor:
            pairs = x[..., :6].unflatten(-1, (3, 2) if interleaved else (2, 3))
            pairs = pairs if interleaved else pairs.transpose(-1, -2)
            turned = (
                torch.view_as_complex(pairs.contiguous())
                * torch.polar(torch.ones(5, 3, dtype=torch.float64), angles[2:7])[:, None]
            )
            real = torch.view_as_real(turned)
            return torch.cat(((real if interleaved else real.transpose(-1, -2)).flatten(-2), x[..., 6:]), -1)

        rotate = FLASH["layers.rotary.apply_rotary_emb"]
        equal(lambda x: rotate(x, angles.cos(), angles.sin(), interleaved, seqlen_offsets=2), plain, leaves)
        flat = x.detach().flatten(0, 1)
        packed = rotate(flat, angles.cos(), angles.sin(), interleaved, cu_seqlens=torch.tensor([0, 5, 10]))
        assert_close(packed.unflatten(0, (2, 5)), rotate(x.detach(), angles.cos(), angles.sin(), interleaved))

    def test_embeddings_rotate_queries_and_keys(self) -> None:
        qkv = torch.randn(2, 5, 3, 4, 8)
        rotary = FLASH["layers.rotary.RotaryEmbedding"](8)
        angles = torch.outer(torch.arange(5.0), rotary.inv_freq)
        rotated = [FLASH["layers.rotary.apply_rotary_emb"](each, angles.cos(), angles.sin()) for each in qkv.unbind(2)]
        expected = torch.stack((rotated[0], rotated[1], qkv[:, :, 2]), 2)
        assert_close(rotary(qkv.clone()), expected)
        in_place = qkv.clone()
        rotary(in_place)
        assert_close(in_place, expected)

    def test_padding_is_taken_off_and_put_back(self) -> None:
        x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
        packed, indices, ends, longest, lengths = FLASH["bert_padding.unpad_input"](x, mask)
        assert (packed.shape, ends.tolist(), longest, lengths.tolist()) == ((5, 3), [0, 2, 5], 3, [2, 3])
        assert_close(FLASH["bert_padding.pad_input"](packed, indices, 2, 4), x * mask[..., None])

    def test_the_loss(self) -> None:
        leaves = tensors((6, 10))
        labels = torch.tensor([1, 2, -100, 9, 0, 3])
        loss = FLASH["losses.cross_entropy.CrossEntropyLoss"](label_smoothing=0.1)
        equal(
            lambda x: loss(x.float(), labels),
            lambda x: cross_entropy(x.float(), labels, label_smoothing=0.1),
            leaves,
        )

    def test_norms(self) -> None:
        leaves = [each.detach().float().requires_grad_() for each in tensors((2, 5, 8), (8,), (8,))]
        functional = torch.nn.functional
        fused = FLASH["ops.triton.layer_norm.layer_norm_fn"]
        equal(fused, lambda x, w, b: functional.layer_norm(x, (8,), w, b, 1e-6), leaves)
        equal(
            lambda x, w: fused(x, w, None, residual=x, is_rms_norm=True, eps=1e-5),
            lambda x, w: functional.rms_norm(2 * x, (8,), w, 1e-5),
            leaves[:2],
        )
        equal(FLASH["ops.rms_norm.rms_norm"], lambda x, w: functional.rms_norm(x, (8,), w, 1e-6), leaves[:2])
