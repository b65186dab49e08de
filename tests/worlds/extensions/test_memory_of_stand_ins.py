"""On fake tensors, from which a step's memory is predicted, stand-ins hold no more than the kernels that they replace.

Modules: ``worlds/extensions/grouped_gemm.py``, ``worlds/extensions/fused_norms.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsexplore._internal.worlds.extensions import registry

TOKENS, WIDTH, EXPERTS, HEADS, VOCABULARY = 4096, 2048, 8, 16, 32768


class LargestStorage(TorchDispatchMode):
    """Keeps the bytes of the largest storage that an op returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op."""
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return out


def half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)


def packed() -> tuple[Any, ...]:
    ends = torch.tensor([0, TOKENS // 2, TOKENS], dtype=torch.int32)
    return (*(half(TOKENS, HEADS, 128) for _ in range(3)), ends, ends, TOKENS // 2, TOKENS // 2)


def batch(count: int) -> list[Tensor]:
    return [half(2, TOKENS // 2, HEADS, 128) for _ in range(count)]


def tables() -> tuple[Tensor, Tensor]:
    return torch.empty(TOKENS, 64), torch.empty(TOKENS, 64)


def weights() -> tuple[Tensor, Tensor]:
    return half(WIDTH), half(WIDTH)


def classifier() -> tuple[Tensor, Tensor]:
    """Return input and weight of a layer whose logits would be larger than both."""
    return half(TOKENS, WIDTH), half(VOCABULARY, WIDTH)


def labels() -> Tensor:
    return torch.zeros(TOKENS, dtype=torch.int64)


CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "grouped_gemm ops.gmm": lambda: (
        *(half(TOKENS, WIDTH), half(EXPERTS, WIDTH, 2 * WIDTH)),
        torch.full((EXPERTS,), TOKENS // EXPERTS),
    ),
    "grouped_gemm ops.permute": lambda: (half(TOKENS, WIDTH), torch.zeros(TOKENS, 2, dtype=torch.int32)),
    "grouped_gemm ops.unpermute": lambda: (
        *(half(2 * TOKENS, WIDTH), torch.arange(2 * TOKENS)),
        torch.empty(TOKENS, 2),
    ),
    "flash_attn layers.rotary.apply_rotary_emb": lambda: (*batch(1), *tables()),
    "flash_attn ops.triton.rotary.apply_rotary": lambda: (*batch(1), *tables()),
    "flash_attn flash_attn_func": lambda: (*batch(3),),
    "flash_attn flash_attn_varlen_func": packed,
    "flash_attn ops.triton.layer_norm.layer_norm_fn": lambda: (half(TOKENS, WIDTH), *weights(), half(TOKENS, WIDTH)),
    "flash_attn ops.triton.cross_entropy.cross_entropy_loss": lambda: (half(TOKENS, VOCABULARY), labels()),
    "xformers ops.memory_efficient_attention": lambda: (*batch(3),),
    "xformers ops.rmsnorm.rms_norm": lambda: (half(TOKENS, WIDTH), half(WIDTH)),
    "apex normalization.fused_layer_norm.fused_layer_norm_affine": lambda: (half(TOKENS, WIDTH), *weights(), WIDTH),
    "liger_kernel transformers.functional.liger_cross_entropy": lambda: (half(TOKENS, VOCABULARY), labels()),
    "liger_kernel transformers.functional.liger_fused_linear_cross_entropy": lambda: (*classifier(), labels()),
    "liger_kernel transformers.LigerFusedLinearJSD": lambda: (*classifier(), *classifier()),
    "cut_cross_entropy linear_cross_entropy": lambda: (*classifier(), labels()),
    "bitsandbytes functional.quantize_4bit": lambda: (half(TOKENS, WIDTH),),
    "bitsandbytes functional.quantize_blockwise": lambda: (half(TOKENS, WIDTH),),
    "bitsandbytes functional.int8_vectorwise_quant": lambda: (half(TOKENS, WIDTH),),
    "liger_kernel transformers.functional.liger_rms_norm": lambda: (half(TOKENS, WIDTH), half(WIDTH), 1e-6),
}
"""{package and name: how to make its arguments}."""


@pytest.mark.parametrize("call", CALLS)
def test_no_tensor_is_larger_than_operands_and_result_in_fp32(call: str) -> None:
    package, _, name = call.partition(" ")
    stand_in: Any = registry.names_of(package)[name]
    with FakeTensorMode():
        arguments = CALLS[call]()
        with LargestStorage() as seen:
            out = stand_in()(*arguments) if isinstance(stand_in, type) else stand_in(*arguments)
            results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            loss = sum(leaf.float().sum() for leaf in results if leaf.requires_grad)
            if isinstance(loss, Tensor):
                loss.backward()
        tensors = [leaf for leaf in (*arguments, *results) if isinstance(leaf, Tensor)]
        assert seen.largest <= 4 * sum(tensor.numel() for tensor in tensors), call
