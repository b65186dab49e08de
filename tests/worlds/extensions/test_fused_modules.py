"""The stand-ins for fused layers and losses equal closed forms: Apex, flash_attn, xformers, cut_cross_entropy.

Modules: ``worlds/extensions/fused_layers.py``, ``worlds/extensions/flash_attn_modules.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear
from torch.testing import assert_close

from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.apex import EXTENSIONS as OF_APEX
from dsexplore._internal.worlds.extensions.cut_cross_entropy import EXTENSIONS as OF_CUT
from dsexplore._internal.worlds.extensions.flash_attn import EXTENSIONS as OF_FLASH
from dsexplore._internal.worlds.extensions.grouped_gemm import EXTENSIONS as OF_GROUPED
from dsexplore._internal.worlds.extensions.xformers import EXTENSIONS as OF_XFORMERS
from dsexplore._internal.worlds.simulate import simulate

APEX: Any = OF_APEX["apex"]
FLASH: Any = OF_FLASH["flash_attn"]
XFORMERS: Any = OF_XFORMERS["xformers"]
GROUPED: Any = OF_GROUPED["grouped_gemm"]


class TestApex:
    def test_layers(self) -> None:
        x = torch.randn(2, 4)
        mlp = APEX["mlp.MLP"]([4, 6, 3], activation="relu")
        hidden = torch.relu(linear(x, mlp.weight_0, mlp.bias_0))
        assert_close(mlp(x), torch.relu(linear(hidden, mlp.weight_1, mlp.bias_1)))
        dense = APEX["fused_dense.FusedDense"](4, 3)
        assert_close(dense(x), linear(x, dense.weight, dense.bias))
        both = APEX["fused_dense.FusedDenseGeluDense"](4, 6, 3)
        hidden = functional.gelu(linear(x, both.weight1, both.bias1), approximate="tanh")
        assert_close(both(x), linear(hidden, both.weight2, both.bias2))
        assert_close(APEX["contrib.layer_norm.FastLayerNorm"](4)(x), functional.layer_norm(x, (4,)))

    def test_losses_of_rows(self) -> None:
        logits, labels = torch.randn(3, 5, requires_grad=True), torch.tensor([1, 0, 4])
        losses = APEX["contrib.xentropy.SoftmaxCrossEntropyLoss"].apply(logits, labels, 0.1)
        expected = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1, ignore_index=0)
        assert_close(losses, expected)
        grads = [torch.autograd.grad(each.sum(), logits)[0] for each in (losses, expected)]
        assert_close(*grads)

    def test_novograd_divides_by_the_norm(self) -> None:
        weight, gradients = nn.Parameter(torch.tensor([3.0, 4.0])), (torch.tensor([6.0, 8.0]), torch.tensor([3.0, 4.0]))
        optimizer = APEX["optimizers.FusedNovoGrad"]([weight], lr=0.1, bias_correction=False, weight_decay=0.5)
        expected, average, square = weight.detach().clone(), torch.zeros(2), torch.tensor(100.0)
        for gradient, norm in zip(gradients, (100.0, 25.0), strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
            square = 0.999 * square + 0.001 * norm
            average = 0.9 * average + 0.1 * gradient
            expected = expected - 0.1 * (average / (square.sqrt() + 1e-8) + 0.5 * expected)
        assert_close(weight.detach(), expected)

    @pytest.mark.parametrize("is_decoupled", [False, True])
    def test_adagrad(self, is_decoupled: bool) -> None:
        start, gradient = torch.tensor([3.0, -4.0]), torch.tensor([6.0, 8.0])
        weight = nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        APEX["optimizers.FusedAdagrad"]([weight], lr=0.1, weight_decay=0.5, adagrad_w_mode=is_decoupled).step()
        expected = start * 0.95 - 0.1 * gradient.sign() if is_decoupled else start - 0.1 * (gradient + start / 2).sign()
        assert_close(weight.detach(), expected)

    def test_larc_limits_the_learning_rate(self) -> None:
        weight = nn.Parameter(torch.tensor([3.0, 4.0]))
        weight.grad = torch.tensor([6.0, 8.0])
        optimizer = APEX["parallel.LARC"](torch.optim.SGD([weight], lr=0.1, weight_decay=0.5))
        optimizer.step()
        decayed = torch.tensor([7.5, 10.0])
        assert_close(weight.detach(), torch.tensor([3.0, 4.0]) - 0.02 * 5 / (10 + 5 * 0.5) * decayed)
        assert optimizer.param_groups[0]["weight_decay"] == 0.5

    def test_batch_norms_send_their_statistics(self) -> None:
        with simulate(4, hardware="h100"), record() as trace:
            model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
            model = APEX["parallel.convert_syncbn_model"](model).cuda()
            assert type(model[1]) is APEX["parallel.SyncBatchNorm"]
            model(torch.randn(2, 3, 4, 4, device="cuda")).sum().backward()
        assert trace.events["op"].to_list() == ["all_gather", "all_reduce"]
        assert trace.events["message_bytes"].to_list() == [4 * 4 * (2 * 8 + 1), 4 * 2 * 8]

    def test_a_reducer_averages_where_it_is_called(self) -> None:
        with simulate(4, hardware="h100"), record() as trace:
            model = nn.Linear(3, 2).cuda()
            reducer = APEX["parallel.Reducer"](model)
            model(torch.ones(1, 3, device="cuda")).sum().backward()
            before = model.bias.grad.clone()
            reducer.reduce()
        assert trace.events["op"].to_list() == ["broadcast", "all_reduce"]
        assert set(trace.events["message_bytes"]) == {4 * (3 * 2 + 2)}
        assert before.tolist() == [1.0, 1.0]


class TestFlashAttention:
    @pytest.mark.parametrize("heads", [4, 2])
    def test_attention_between_its_projections(self, heads: int) -> None:
        layer = FLASH["modules.mha.MHA"](16, 4, num_heads_kv=heads, causal=True)
        x = torch.randn(2, 5, 16)
        q, k, v = (
            linear(x, layer.Wqkv.weight, layer.Wqkv.bias)
            .unflatten(-1, (-1, 4))
            .transpose(1, 2)
            .split((4, heads, heads), 1)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert_close(layer(x), layer.out_proj(out.transpose(1, 2).flatten(2)))
        packed = layer(x.flatten(0, 1), cu_seqlens=torch.tensor([0, 5, 10]), max_seqlen=5)
        assert_close(packed, layer(x).flatten(0, 1))
        kept = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        padded = layer(x, key_padding_mask=kept)
        assert_close((padded[0], padded[1, :3]), (layer(x)[0], layer(x[1:, :3])[0]))
        with pytest.raises(UsageError, match="no cache for generation"):
            layer(x, inference_params=object())

    def test_attention_to_another_input(self) -> None:
        layer = FLASH["modules.mha.MHA"](16, 4, num_heads_kv=2, cross_attn=True)
        x, y = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
        q = layer.Wq(x).unflatten(-1, (-1, 4)).transpose(1, 2)
        k, v = layer.Wkv(y).unflatten(-1, (-1, 4)).transpose(1, 2).chunk(2, 1)
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        expected = layer.out_proj(out.transpose(1, 2).flatten(2))
        assert_close(layer(x, y), expected)
        assert_close(layer(x, y, mixer_subset=slice(0, 1)), expected[:, :1])
        ends = {"cu_seqlens": torch.tensor([0, 3, 6]), "cu_seqlens_k": torch.tensor([0, 5, 10])}
        assert_close(layer(x.flatten(0, 1), y.flatten(0, 1), **ends, max_seqlen=5), expected.flatten(0, 1))

    def test_mlps(self) -> None:
        x = torch.randn(2, 4)
        mlp = FLASH["modules.mlp.Mlp"](4)
        assert mlp.fc1.weight.shape == (16, 4)
        assert_close(mlp(x), mlp.fc2(functional.gelu(mlp.fc1(x))))
        gated = FLASH["modules.mlp.GatedMlp"](4, activation=functional.silu)
        assert gated.fc1.weight.shape == (256, 4)
        y, gate = gated.fc1(x).chunk(2, -1)
        assert_close(gated(x), gated.fc2(y * functional.silu(gate)))
        fused = FLASH["ops.fused_dense.FusedMLP"](4, 8)
        assert_close(fused(x), fused.fc2(functional.gelu(fused.fc1(x), approximate="tanh")))
        dense = FLASH["ops.fused_dense.FusedDense"](4, 3, return_residual=True)
        assert_close(dense(x)[0], linear(x, dense.weight, dense.bias))
        assert dense(x)[1] is x
        assert_close(FLASH["ops.activations.swiglu"](x, x + 1), functional.silu(x) * (x + 1))

    @pytest.mark.parametrize("prenorm", [True, False])
    def test_a_block(self, prenorm: bool) -> None:
        block = FLASH["modules.block.Block"](
            8, partial(FLASH["modules.mha.MHA"], num_heads=2), FLASH["modules.mlp.Mlp"], prenorm=prenorm
        )
        x = torch.randn(2, 3, 8)
        if prenorm:
            first = x + block.mixer(block.norm1(x))
            hidden, residual = block(x)
            assert_close((hidden, residual), (block.mlp(block.norm2(first)), first))
        else:
            first = block.norm1(x + block.mixer(x))
            assert_close(block(x), block.norm2(first + block.mlp(first)))

    def test_a_norm_of_a_sum(self) -> None:
        x, residual, weight, bias = torch.randn(2, 4), torch.randn(2, 4), torch.randn(4), torch.randn(4)
        out, total = FLASH["ops.layer_norm.dropout_add_layer_norm"](x, residual, weight, bias, 0.0, 1e-5, prenorm=True)
        assert_close((out, total), (functional.layer_norm(x + residual, (4,), weight, bias), x + residual))


def test_attention_over_parts_of_the_keys_is_merged() -> None:
    q, k, v = (torch.randn(2, 6, 3, 4) for _ in range(3))
    of_parts = [
        XFORMERS["ops.memory_efficient_attention_forward_requires_grad"](q, k[:, part], v[:, part])
        for part in (slice(0, 2), slice(2, 6))
    ]
    outs, sums = zip(*of_parts, strict=True)
    out, total = XFORMERS["ops.merge_attentions"](outs, sums)
    whole, of_whole = XFORMERS["ops.memory_efficient_attention_forward_requires_grad"](q, k, v)
    assert_close((out, total), (whole, of_whole))
    plain = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    assert_close(out, plain)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shift", [0, 1])
def test_cut_cross_entropy(reduction: str, shift: int) -> None:
    cut: Any = OF_CUT["cut_cross_entropy"]
    e, c = torch.randn(2, 4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    labels = torch.tensor([[1, 2, -100, 4], [0, 1, 2, 3]])
    loss = cut["linear_cross_entropy"](e, c, labels, reduction=reduction, shift=shift)
    rows, targets = (e @ c.T)[:, : 4 - shift], labels[:, shift:]
    plain = functional.cross_entropy(rows.transpose(1, 2), targets, reduction=reduction)
    assert_close(loss, plain)
    assert_close(torch.autograd.grad(loss.sum(), (e, c), retain_graph=True), torch.autograd.grad(plain.sum(), (e, c)))
    assert_close(cut["LinearCrossEntropy"](reduction=reduction, shift=shift)(e, c, labels), plain)


class TestGroupedGemm:
    def test_gradients_of_weights(self) -> None:
        a, b, sizes = torch.randn(5, 4), torch.randn(5, 6), torch.tensor([2, 0, 3])
        out = GROUPED["backend.gmm"](a, b, sizes, trans_a=True)
        assert_close(out, torch.stack((a[:2].T @ b[:2], torch.zeros(4, 6), a[2:].T @ b[2:])))

    def test_sinkhorn_makes_rows_and_columns_equal(self) -> None:
        out: Tensor = GROUPED["ops.sinkhorn"](torch.randn(6, 3), tol=1e-9)
        assert_close(out.sum(0), torch.full((3,), 1 / 3), rtol=1e-3, atol=1e-4)
        assert_close(out.sum(1), torch.full((6,), 1 / 6), rtol=1e-3, atol=1e-4)
