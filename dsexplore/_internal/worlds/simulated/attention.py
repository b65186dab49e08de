"""Attention in a simulated world: of DTensors by flash attention, as on a GPU; FlexAttention in its plain form.

**DTensors.** On a CPU ``F.scaled_dot_product_attention`` calls an op of its own, for which DTensor has no rule:
attention of sharded heads, and all of context parallelism, would end in an error. Mirrors the choice in
``aten/src/ATen/native/transformers/attention.cpp``: on a GPU the same call reaches
``aten::_scaled_dot_product_flash_attention``, which is what DTensor shards
(``torch/distributed/tensor/_ops/_matrix_ops.py``) and context parallelism replaces by a ring
(``torch/distributed/tensor/experimental/_context_parallel/_attention.py``).

**FlexAttention.** ``flex_attention`` compiles itself where the program has not compiled it, which torch refuses while a
dispatch mode is entered, as in a simulated world. Its plain form has the same shapes and values, with the whole matrix
of scores in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from dsexplore._internal.torch_internals import aten, modules
from dsexplore._internal.torch_internals.dtensor import custom_handlers
from dsexplore._internal.torch_internals.patches import Change, Entry, Kernel, Parts, Patch, Patches


def _handle_dtensors(patches: Patches, _parts: Parts) -> None:
    handlers = custom_handlers()
    for op, handler in (
        (aten.flash_attention_on_cpu.default, _forward_of_dtensors),
        (aten.flash_attention_on_cpu_backward.default, _backward_of_dtensors),
    ):
        handlers[op] = handler
        patches.callback(handlers.pop, op, None)


def _forward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return output and logsumexp, the results of the CPU's op, for DTensors of query, key and value."""
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError(
            "attention of DTensors with an attention mask is not simulated, as flash attention takes none: "
            "leave attn_mask out, give is_causal=True, or call it on local tensors"
        )
    output, logsumexp, *_ = aten.flash_attention.default(*args[:5], scale=kwargs.get("scale"))
    return output, logsumexp


def _backward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the gradients of query, key and value."""
    gradient, query, key, value, output, logsumexp, dropout, is_causal, *_ = args
    mesh = query.device_mesh

    def of_dropout(*shape: int) -> DTensor:
        state = torch.empty(shape, dtype=torch.int64)
        return DTensor.from_local(state, mesh, [Replicate()] * mesh.ndim, run_check=False)

    lengths = (query.shape[2], key.shape[2])
    states = (of_dropout(2), of_dropout())
    tensors = (gradient, query, key, value, output, logsumexp)
    options = (None, None, *lengths, dropout, is_causal, *states)
    return aten.flash_attention_backward.default(*tensors, *options, scale=kwargs.get("scale"))


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
    """Compute flash attention of local tensors with the CPU's op."""
    output, logsumexp = aten.flash_attention_on_cpu.default(query, key, value, dropout, is_causal, scale=scale)
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
    """Return the gradients of `_forward`; `rest` is lengths, dropout, is_causal, dropout states."""
    dropout, is_causal = rest[4], rest[5]
    tensors = (gradient, query, key, value, output, logsumexp)
    return aten.flash_attention_on_cpu_backward.default(*tensors, dropout, is_causal, scale=scale)


_NO_KERNEL = "torch has it for GPUs alone, and DTensor's rules are for it"


PATCHES: tuple[Entry, ...] = (
    Change(
        "DTensor's handlers of the CPU's attention", "DTensor has no rule for it", _handle_dtensors, when="cuda traffic"
    ),
    Kernel(aten.FLASH_ATTENTION, "CPU", _NO_KERNEL, lambda _parts: _forward, when="cuda traffic", only_if_missing=True),
    Kernel(
        aten.FLASH_ATTENTION_BACKWARD,
        "CPU",
        _NO_KERNEL,
        lambda _parts: _backward,
        when="cuda traffic",
        only_if_missing=True,
    ),
    Patch(
        modules.FLEX_ATTENTION_UNCOMPILED,
        "it compiles itself, which torch refuses under a dispatch mode",
        lambda _original, _parts: True,
        on_import=True,
    ),
)
