"""Attention in a simulated world: DTensors use flash attention, as on a GPU; FlexAttention is not compiled.

**DTensors.** On a CPU ``F.scaled_dot_product_attention`` calls an op for CPUs, for which DTensor has no rule. So
attention with sharded heads, and all of context parallelism, would raise an error. On a GPU the same call reaches
``aten::_scaled_dot_product_flash_attention`` (see ``aten/src/ATen/native/transformers/attention.cpp``). DTensor shards
that op (``torch/distributed/tensor/_ops/_matrix_ops.py``), and context parallelism replaces it by a ring
(``torch/distributed/tensor/experimental/_context_parallel/_attention.py``).

**FlexAttention.** ``flex_attention`` compiles itself if the program has not compiled it. torch refuses that inside a
dispatch mode, as in a simulated world. The eager form has the same shapes and values, with the whole matrix of scores
in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from dsexplore._internal.torch_internals import aten, modules
from dsexplore._internal.torch_internals.dtensor import custom_handlers
from dsexplore._internal.torch_internals.patches import Change, Entry, Kernel, Parts, Patch, Patches


def _handle_dtensors(patches: Patches, _parts: Parts) -> None:
    """Add DTensor's handlers of the CPU's flash attention, forward and backward, until the end of the block."""
    handlers = custom_handlers()
    for op, handler in (
        (aten.flash_attention_on_cpu.default, _forward_of_dtensors),
        (aten.flash_attention_on_cpu_backward.default, _backward_of_dtensors),
    ):
        handlers[op] = handler
        patches.callback(handlers.pop, op, None)


def _forward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return output and logsumexp, the results of the CPU's op, for DTensors of query, key and value.

    Raises:
        NotImplementedError: the call has an attention mask.
    """
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError(
            "attention of DTensors with an attention mask is not simulated, as flash attention takes no mask: "
            "omit attn_mask, give is_causal=True, or call it on local tensors"
        )
    output, logsumexp, *_ = aten.flash_attention.default(*args[:5], scale=kwargs.get("scale"))
    return output, logsumexp


def _backward_of_dtensors(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the gradients of query, key and value, from the arguments of the CPU's op."""
    gradient, query, key, value, output, logsumexp, dropout, is_causal, *_ = args
    mesh = query.device_mesh

    def dropout_state(*shape: int) -> DTensor:
        state = torch.empty(shape, dtype=torch.int64)
        return DTensor.from_local(state, mesh, [Replicate()] * mesh.ndim, run_check=False)

    lengths = (query.shape[2], key.shape[2])
    states = (dropout_state(2), dropout_state())
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
    """Compute flash attention of local tensors with the CPU's op; return the results that the GPU's op has."""
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
    _query_offsets: None,
    _key_offsets: None,
    _query_length: int,
    _key_length: int,
    dropout: float,
    is_causal: bool,
    *_dropout_states: torch.Tensor,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value for `_forward`."""
    tensors = (gradient, query, key, value, output, logsumexp)
    return aten.flash_attention_on_cpu_backward.default(*tensors, dropout, is_causal, scale=scale)


_NO_KERNEL = "torch has it for GPUs only, and DTensor's rules are for it"


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
