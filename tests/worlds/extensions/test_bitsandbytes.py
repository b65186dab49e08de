"""The stand-ins for bitsandbytes' optimizers and quantized weights equal closed forms.

Modules: ``worlds/extensions/bitsandbytes.py``, ``worlds/extensions/bitsandbytes_layers.py``.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import layer_norm, linear
from torch.testing import assert_close

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.extensions.bitsandbytes import EXTENSIONS
from dsexplore._internal.worlds.simulate import simulate

BITS: Any = EXTENSIONS["bitsandbytes"]
START = torch.tensor([1.0, -2.0, 3.0])
GRADIENTS = [torch.tensor([1.0, 2.0, -3.0]), torch.tensor([-0.5, 1.0, 2.0])]


def after_steps(kind: Any, **options: Any) -> Tensor:
    """Return a parameter after a step with each gradient."""
    weight = nn.Parameter(START.clone())
    optimizer = kind([weight], **options)
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("name", ["AdamW8bit", "PagedAdamW", "PagedAdamW8bit", "Adam8bit", "PagedAdam32bit"])
def test_adam_is_torchs_adamw(name: str) -> None:
    options: Any = {"lr": 0.1, "weight_decay": 0.1}
    assert_close(after_steps(BITS[f"optim.{name}"], **options), after_steps(torch.optim.AdamW, **options))


@pytest.mark.parametrize("bits", ["", "8bit", "32bit"])
@pytest.mark.parametrize("name", ["RMSprop", "Adagrad"])
def test_rmsprop_and_adagrad_are_torchs(name: str, bits: str) -> None:
    plain = after_steps(getattr(torch.optim, name), lr=0.1, weight_decay=0.1)
    assert_close(after_steps(BITS[f"optim.{name}{bits}"], lr=0.1, weight_decay=0.1, min_8bit_size=1), plain)


@pytest.mark.parametrize("name", ["Lion", "Lion8bit", "PagedLion", "PagedLion8bit", "lion.Lion"])
def test_lion_takes_the_sign_of_an_average(name: str) -> None:
    first, second = GRADIENTS
    weight = START * (1 - 0.1 * 0.5) - 0.1 * first.sign()
    weight = weight * (1 - 0.1 * 0.5) - 0.1 * (0.9 * 0.01 * first + 0.1 * second).sign()
    assert_close(after_steps(BITS[f"optim.{name}"], lr=0.1, weight_decay=0.5), weight)


def test_lars_limits_the_norm_of_its_update() -> None:
    first, second = GRADIENTS
    momentum = 0.9 * first + second
    assert_close(after_steps(BITS["optim.LARS"], lr=0.1, momentum=0.9, max_unorm=0), START - 0.1 * (first + momentum))
    assert_close(
        after_steps(BITS["optim.LARS8bit"], lr=0.1, momentum=0.9, max_unorm=100), START - 0.1 * (first + momentum)
    )
    weight = nn.Parameter(START.clone())
    weight.grad = first
    BITS["optim.PytorchLARS"]([weight], lr=1.0, momentum=0.9).step()
    assert_close((weight.detach() - START).norm(), 0.02 * START.norm())


def test_lamb_limits_the_norm_of_adams_update() -> None:
    options: Any = {"lr": 0.1, "weight_decay": 0.1}
    assert_close(after_steps(BITS["optim.LAMB"], **options), after_steps(torch.optim.AdamW, **options))
    weight = nn.Parameter(START / 1000)
    weight.grad = GRADIENTS[0]
    BITS["optim.LAMB32bit"]([weight], lr=1.0).step()
    assert_close((weight.detach() - START / 1000).norm(), START.norm() / 1000)


@pytest.mark.parametrize("name", ["AdEMAMix", "AdEMAMix8bit", "PagedAdEMAMix32bit"])
def test_ademamix_is_adam_with_a_slow_average(name: str) -> None:
    plain = after_steps(torch.optim.AdamW, lr=0.1, weight_decay=0.01)
    assert_close(after_steps(BITS[f"optim.{name}"], lr=0.1, alpha=0.0), plain)
    first, second = GRADIENTS
    weight, ends = START.clone(), 0.9999
    averages = [(0.1 * first / 0.1, 1e-4 * first, 1e-3 * first**2 / 1e-3)]
    square = (0.999 * 1e-3 * first**2 + 1e-3 * second**2) / (1 - 0.999**2)
    averages.append(((0.09 * first + 0.1 * second) / (1 - 0.81), ends * 1e-4 * first + 1e-4 * second, square))
    for fast, slow, root in averages:
        weight = weight - 0.1 * ((fast + 5 * slow) / (root.sqrt() + 1e-8) + 0.01 * weight)
    assert_close(after_steps(BITS[f"optim.{name}"], lr=0.1), weight, rtol=1e-4, atol=1e-5)


def test_ademamix_grows_what_has_a_schedule() -> None:
    weight = nn.Parameter(START.clone())
    weight.grad = GRADIENTS[0]
    BITS["optim.AdEMAMix"]([weight], lr=0.1, alpha=8.0, t_alpha=4, t_beta3=4, weight_decay=0.0).step()
    begin, end = math.log(0.9), math.log(0.9999)
    beta = math.exp(begin * end / (0.75 * end + 0.25 * begin))
    assert_close(weight.detach(), START - 0.1 * (1 + 2 * (1 - beta)) * GRADIENTS[0].sign())


class TestQuantization:
    @pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
    @pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
    def test_of_four_bits_finds_the_nearest_code(self, quant_type: str, storage: torch.dtype) -> None:
        values = torch.randn(6, 32).bfloat16()
        quantize, dequantize = BITS["functional.quantize_4bit"], BITS["functional.dequantize_4bit"]
        packed, state = quantize(values, quant_type=quant_type, quant_storage=storage)
        assert (packed.shape, packed.dtype) == ((96 // storage.itemsize, 1), storage)
        blocks = values.float().view(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks.unsqueeze(-1) / largest.unsqueeze(-1) - state.code).abs().argmin(-1)
        assert_close(dequantize(packed, state), (state.code[nearest] * largest).view(6, 32).bfloat16())
        assert_close(dequantize(packed.T, state), dequantize(packed, state).T)
        assert_close(BITS["matmul_4bit"](values, packed.T, state), values @ dequantize(packed, state).T)

    def test_of_eight_bits_finds_the_nearest_code(self) -> None:
        values = torch.randn(3, 100)
        numbers, state = BITS["functional.quantize_blockwise"](values, blocksize=64)
        assert (numbers.dtype, numbers.shape, state.code.unique().numel()) == (torch.uint8, values.shape, 256)
        back = BITS["functional.dequantize_blockwise"](numbers, state)
        largest = torch.stack([part.abs().max() for part in values.flatten().split(64)])
        assert_close(state.absmax, largest)
        of_each = largest.repeat_interleave(64)[:300]
        nearest = (values.flatten().unsqueeze(1) - state.code * of_each.unsqueeze(1)).abs().amin(1)
        assert_close((back - values).abs().flatten(), nearest)

    def test_of_rows(self) -> None:
        rows, largest, _ = BITS["functional.int8_vectorwise_quant"](torch.tensor([[1.0, -2.0], [4.0, 1.0]]))
        assert (rows.tolist(), largest.tolist()) == ([[64, -127], [127, 32]], [2.0, 4.0])
        assert_close(BITS["functional.int8_vectorwise_dequant"](rows, largest)[1, 1].item(), 32 * 4 / 127)


class TestLayers:
    def test_are_linear_until_they_are_on_a_gpu(self) -> None:
        x = torch.randn(2, 8)
        for name in ("Linear4bit", "LinearNF4", "Linear8bitLt"):
            layer = BITS[f"nn.{name}"](8, 4)
            assert_close(layer(x), linear(x, layer.weight, layer.bias))

    @pytest.mark.parametrize("fake", [False, True])
    def test_of_four_bits(self, fake: bool) -> None:
        with simulate(2, hardware="h100", fake=fake):
            layer = BITS["nn.LinearNF4"](64, 32, quant_storage=torch.bfloat16)
            layer.to("cuda")
            assert (layer.weight.shape, layer.weight.dtype) == ((64 * 32 // 4, 1), torch.bfloat16)
            x = torch.randn(2, 64, device="cuda", requires_grad=True)
            out = layer(x)
            out.sum().backward()
            assert (out.shape, out.dtype, layer.weight.grad) == ((2, 32), torch.float32, None)
            if not fake:
                weight = BITS["functional.dequantize_4bit"](layer.weight.data, layer.quant_state)
                assert_close(out, linear(x, weight, layer.bias))
                assert_close(x.grad, weight.sum(0).expand(2, 64))

    def test_of_eight_bits(self) -> None:
        with simulate(2, hardware="h100"):
            layer = BITS["nn.Linear8bitLt"](8, 4, has_fp16_weights=False)
            before = layer.weight.detach().clone()
            layer.cuda()
            assert layer.weight.dtype == torch.int8
            x = torch.eye(8, device="cuda")
            error = (layer(x) - layer.bias).T.cpu() - before
            assert (error.abs() <= before.abs().amax(1, keepdim=True) / 254 + 1e-6).all()

    def test_send_four_bits_a_value(self) -> None:
        with simulate(4, hardware="h100"), record() as trace:
            layer = BITS["nn.LinearNF4"](64, 32, bias=False, quant_storage=torch.bfloat16).cuda()
            fully_shard(layer)
            layer(torch.randn(2, 64, device="cuda"))
        assert trace.events["op"].to_list() == ["all_gather"]
        assert trace.events["message_bytes"].to_list() == [64 * 32 // 2]

    def test_embeddings(self) -> None:
        places = torch.tensor([1, 2])
        stable = BITS["nn.StableEmbedding"](4, 8, padding_idx=0)
        assert_close(stable(places), layer_norm(stable.weight[places], (8,)))
        plain = BITS["nn.Embedding"](4, 8)
        assert_close(plain(places), plain.weight[places])
        assert plain.weight.abs().max() <= math.sqrt(6 / 12)
