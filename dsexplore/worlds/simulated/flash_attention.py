"""Attention of DTensors as on a GPU: by flash attention, whose sharding rules and ring torch has.

On a CPU ``F.scaled_dot_product_attention`` calls an op of its own, for which DTensor has no rule: attention of sharded
heads, and all of context parallelism, would end in an error. Mirrors the choice in
``aten/src/ATen/native/transformers/attention.cpp``: on a GPU the same call reaches
``aten::_scaled_dot_product_flash_attention``, which is what DTensor shards
(``torch/distributed/tensor/_ops/_matrix_ops.py``) and context parallelism replaces by a ring
(``torch/distributed/tensor/experimental/_context_parallel/_attention.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from dsexplore.torch_internals.patches import Patches

_aten = torch.ops.aten
_ON_CPU = _aten._scaled_dot_product_flash_attention_for_cpu.default
_ON_CPU_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_FLASH = _aten._scaled_dot_product_flash_attention.default
_FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_backward.default


def patch_attention(patches: Patches) -> None:
    """Send attention of DTensors to flash attention, and give that kernels for CPU tensors."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    for op, handler in ((_ON_CPU, _forward_of_dtensors), (_ON_CPU_BACKWARD, _backward_of_dtensors)):
        handlers[op] = handler
        patches.callback(handlers.pop, op, None)
    library = torch.library.Library("aten", "IMPL")
    patches.callback(library._destroy)
    library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")


def _forward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The results of the CPU's op, output and logsumexp, of DTensors of query, key and value."""
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError(
            "attention of DTensors with an attention mask is not simulated, as flash attention takes none: "
            "leave attn_mask out, give is_causal=True, or call it on local tensors"
        )
    output, logsumexp, *_ = _FLASH(*args[:5], scale=kwargs.get("scale"))
    return output, logsumexp


def _backward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of query, key and value."""
    gradient, query, key, value, output, logsumexp, dropout, is_causal, *_ = args
    mesh = query.device_mesh

    def of_dropout(*shape: int) -> DTensor:
        state = torch.empty(shape, dtype=torch.int64)
        return DTensor.from_local(state, mesh, [Replicate()] * mesh.ndim, run_check=False)

    lengths = (query.shape[2], key.shape[2])
    states = (of_dropout(2), of_dropout())
    tensors = (gradient, query, key, value, output, logsumexp)
    scale = kwargs.get("scale")
    return _FLASH_BACKWARD(*tensors, None, None, *lengths, dropout, is_causal, *states, scale=scale)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    _return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Flash attention of local tensors, computed by the CPU's op."""
    output, logsumexp = _ON_CPU(query, key, value, dropout, is_causal, scale=scale)
    states = (torch.empty(2, dtype=torch.int64), torch.empty((), dtype=torch.int64))
    return output, logsumexp, None, None, query.shape[2], key.shape[2], *states, query.new_empty(0)


def _backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    *rest: Any,
    scale: float | None = None,
) -> Any:
    """The gradients of `_forward`; ``rest``: cumulative and largest lengths, dropout, is_causal, states of dropout."""
    dropout, is_causal = rest[4], rest[5]
    tensors = (gradient, query, key, value, output, logsumexp)
    return _ON_CPU_BACKWARD(*tensors, dropout, is_causal, scale=scale)
