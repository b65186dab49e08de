"""The stand-ins of Liger, grouped_gemm and Transformer Engine equal plain torch, forward and backward.

Modules: ``worlds/extensions/``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear
from torch.testing import assert_close

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.extensions import grouped_gemm, liger_kernel, transformer_engine
from dsexplore._internal.worlds.simulate import current_world, simulate

LIGER: Any = liger_kernel.EXTENSIONS["liger_kernel"]
GROUPED: Any = grouped_gemm.EXTENSIONS["grouped_gemm"]
ENGINE: Any = {
    name.removeprefix("pytorch."): value for name, value in transformer_engine.EXTENSIONS["transformer_engine"].items()
}


def equal(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
    """Return outputs, and the gradients of tensors of these shapes."""
    torch.manual_seed(0)
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    out, expected = ours(*leaves), plain(*leaves)
    assert_close(out, expected)
    direction = torch.randn_like(expected)
    assert_close(torch.autograd.grad(out, leaves, direction), torch.autograd.grad(expected, leaves, direction))


class TestLiger:
    def test_functions(self) -> None:
        equal(
            lambda x, w: LIGER["transformers.functional.liger_rms_norm"](x, w, 1e-5),
            lambda x, w: functional.rms_norm(x, (8,), w, 1e-5),
            *((3, 8), (8,)),
        )
        equal(LIGER["ops.swiglu.LigerSiLUMulFunction"].apply, lambda a, b: functional.silu(a) * b, *((3, 8), (3, 8)))
        cos, sin = torch.randn(2, 1, 5, 4)
        full = [torch.cat((each, each), -1) for each in (cos, sin)]

        def turned(q: Tensor, k: Tensor) -> Tensor:
            x = torch.stack((q, k))
            first, second = x.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        rope = LIGER["transformers.liger_rotary_pos_emb"]
        equal(lambda q, k: torch.stack(rope(q, k, *full)), turned, *((2, 3, 5, 8), (2, 3, 5, 8)))

    def test_losses(self) -> None:
        target = torch.tensor([1, -100, 4])
        loss = LIGER["transformers.LigerFusedLinearCrossEntropyLoss"]()
        equal(
            lambda x, w: loss(w, x, target), lambda x, w: functional.cross_entropy(x @ w.T, target), *((3, 8), (5, 8))
        )
        equal(
            lambda x: LIGER["transformers.LigerCrossEntropyLoss"](reduction="sum")(x, target),
            lambda x: functional.cross_entropy(x, target, reduction="sum"),
            (3, 8),
        )

    def test_layers(self) -> None:
        mlp = LIGER["transformers.LigerSwiGLUMLP"](SimpleNamespace(hidden_size=4, intermediate_size=6))
        x = torch.randn(2, 4)
        assert_close(mlp(x), mlp.down_proj(functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x)))
        assert_close(LIGER["transformers.LigerRMSNorm"](4)(x), functional.rms_norm(x, (4,), eps=1e-6))

    def test_a_patched_model_is_left_as_it_is_and_a_note_says_so(self) -> None:
        with simulate(2):
            LIGER["transformers.apply_liger_kernel_to_llama"](rope=True)
            world = current_world()
            assert world is not None
            assert any("apply_liger_kernel_to_llama changed nothing" in note for note in world.remarks.notes())


class TestGroupedGemm:
    @pytest.mark.parametrize("trans_b", [False, True])
    def test_multiplies_each_experts_tokens(self, trans_b: bool) -> None:
        sizes = torch.tensor([2, 0, 3])

        def plain(a: Tensor, b: Tensor) -> Tensor:
            b = b.transpose(1, 2) if trans_b else b
            return torch.cat((a[:2] @ b[0], a[2:] @ b[2]))

        weights = (3, 6, 4) if trans_b else (3, 4, 6)
        equal(lambda a, b: GROUPED["ops.gmm"](a, b, sizes, trans_b), plain, *((5, 4), weights))

    def test_has_shapes_without_memory(self) -> None:
        with simulate(2, fake=True, hardware="h100"):
            a, b = torch.ones(5, 4, device="cuda", requires_grad=True), torch.ones(3, 4, 6, device="cuda")
            out = GROUPED["ops.gmm"](a, b, torch.tensor([2, 0, 3]))
            out.sum().backward()
            assert (out.shape, a.grad is not None) == ((5, 6), True)

    def test_orders_tokens_and_puts_them_back(self) -> None:
        experts, probabilities = torch.tensor([[2, 0], [1, 2], [0, 1]]), torch.rand(3, 2)

        def there_and_back(x: Tensor) -> Tensor:
            permuted, places = GROUPED["ops.permute"](x, experts)
            assert_close(permuted, x[[0, 2, 1, 2, 0, 1]])
            back: Tensor = GROUPED["ops.unpermute"](input_act=permuted, row_id_map=places, probs=probabilities)
            return back

        equal(there_and_back, lambda x: x * probabilities.sum(1, keepdim=True), (3, 4))


class TestTransformerEngine:
    def test_layers_are_their_parts(self) -> None:
        x = torch.randn(5, 2, 8)
        cpu: Any = {"device": "cpu"}
        linear = ENGINE["Linear"](8, 6, **cpu)
        assert_close(linear(x), functional.linear(x, linear.weight, linear.bias))
        both = ENGINE["LayerNormLinear"](8, 6, return_bias=True, **cpu)
        out, bias = both(x)
        assert_close(out, functional.linear(functional.layer_norm(x, (8,)), both.weight))
        assert bias is both.bias
        mlp = ENGINE["LayerNormMLP"](8, 16, activation="swiglu", normalization="RMSNorm", bias=False, **cpu)
        gate, up = functional.linear(functional.rms_norm(x, (8,), eps=1e-5), mlp.fc1_weight).chunk(2, -1)
        assert_close(mlp(x), functional.linear(functional.silu(gate) * up, mlp.fc2_weight))
        assert_close(ENGINE["RMSNorm"](8, **cpu)(x), functional.rms_norm(x, (8,), eps=1e-5))

    def test_a_layer_of_a_decoder(self) -> None:
        layer = ENGINE["TransformerLayer"](
            8, 16, 4, num_gqa_groups=2, hidden_dropout=0, attention_dropout=0, device="cpu"
        )
        x = torch.randn(5, 2, 8)
        attention = layer.self_attention
        heads = attention.layernorm_qkv(x).unflatten(-1, (2, 4, 2))
        query, key, value = heads[..., :2, :].flatten(2, 3), heads[..., 2, :], heads[..., 3, :]
        sides = [
            each.permute(1, 2, 0, 3) for each in (query, key.repeat_interleave(2, 2), value.repeat_interleave(2, 2))
        ]
        core = functional.scaled_dot_product_attention(*sides, is_causal=True).permute(2, 0, 1, 3).flatten(2)
        after = x + attention.proj(core)
        assert_close(layer(x), after + layer.layernorm_mlp(after))

    @pytest.mark.parametrize(
        ("is_divided", "expected"),
        [
            (False, ["all_reduce", "all_reduce"]),
            (True, ["all_gather", "reduce_scatter", "all_gather", "all_gather", "reduce_scatter"]),
        ],
    )
    def test_sends_what_tensor_parallelism_sends(self, is_divided: bool, expected: list[str]) -> None:
        with simulate(4, hardware="h100"), record() as trace:
            mlp = ENGINE["LayerNormMLP"](
                8, 16, set_parallel_mode=True, tp_group=dist.group.WORLD, sequence_parallel=is_divided
            )
            assert (mlp.fc1_weight.shape, mlp.fc1_weight.device.type) == ((4, 8), "cuda")
            x = torch.randn(4, 2, 8, device="cuda", requires_grad=True)
            with ENGINE["fp8_autocast"](enabled=True):
                out = mlp(x)
            out.sum().backward()
            assert out.shape == x.shape
        assert trace.events["op"].to_list() == expected
        assert set(trace.events["message_bytes"]) == {4 * 4 * 2 * 8 * (4 if is_divided else 1)}

    def test_layers_in_groups(self) -> None:
        layer, x = ENGINE["GroupedLinear"](3, 4, 6, device="cpu"), torch.randn(5, 4)
        with torch.no_grad():
            layer.bias2.fill_(1.0)
        expected = torch.cat((linear(x[:2], layer.weight0), linear(x[2:], layer.weight2, torch.ones(6))))
        assert_close(layer(x, [2, 0, 3]), expected)

    @pytest.mark.parametrize("count", [-1, 5])
    def test_tokens_in_the_order_of_experts(self, count: int) -> None:
        routing = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]]).bool()
        weights = torch.rand(3, 3)

        def there_and_back(x: Tensor) -> Tensor:
            permuted, chosen, places = ENGINE["moe_permute_with_probs"](x, weights, routing, count)
            assert_close(permuted, x[[0, 2, 1, 0, 2]])
            assert_close(chosen, weights.T[routing.T])
            back: Tensor = ENGINE["permutation.moe_unpermute"](permuted, places, weights)
            return back

        equal(there_and_back, lambda x: x * (weights * routing).sum(1, keepdim=True), (3, 4))
        permuted, places = ENGINE["moe_permute"](torch.eye(3), torch.tensor([[1], [0], [1]]), map_type="index")
        assert permuted.argmax(1).tolist() == [1, 0, 2]
        assert_close(ENGINE["moe_unpermute"](permuted, places, map_type="index"), torch.eye(3))
        chunks = ENGINE["moe_sort_chunks_by_index"](torch.arange(5), torch.tensor([2, 3]), torch.tensor([1, 0]))
        assert chunks.tolist() == [2, 3, 4, 0, 1]

    def test_the_loss_of_words_that_are_divided(self) -> None:
        logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, -100, 2], [0, 4, 3]])
        losses = ENGINE["cross_entropy.parallel_cross_entropy"](logits, labels)
        assert_close(losses, functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none"))
        mean = ENGINE["parallel_cross_entropy"](logits, labels, 0.0, True)
        assert_close(mean, functional.cross_entropy(logits.transpose(1, 2), labels))

    def test_states_of_generators(self) -> None:
        tracker = ENGINE["distributed.CudaRNGStatesTracker"]()
        tracker.add("model-parallel-rng", 7)
        with tracker.fork():
            assert tracker.get_states() == {"model-parallel-rng": 7}
        with pytest.raises(RuntimeError, match="already exists"):
            tracker.add("model-parallel-rng", 8)
        with pytest.raises(KeyError), tracker.fork("other"):
            pass


@pytest.mark.parametrize(("mask_type", "diagonal"), [("causal", 0), ("causal_bottom_right", 2), ("no_mask", 5)])
def test_causal_attention_of_fewer_queries_than_keys(mask_type: str, diagonal: int) -> None:
    attention = ENGINE["attention.DotProductAttention"](2, 4, qkv_format="bshd", attn_mask_type=mask_type)
    mask = torch.ones(3, 5, dtype=torch.bool).tril(diagonal)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2)

    equal(attention, plain, (1, 3, 2, 4), (1, 5, 2, 4), (1, 5, 2, 4))
