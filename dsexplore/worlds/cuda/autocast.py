"""``torch.autocast("cuda")`` on a GPU that is not there: CPU autocast, with the ops that CUDA's autocast casts.

What a model sends has the dtypes of its activations, and CUDA runs more ops in fp32 than the CPU does: softmax, layer
norm, sums and others. So these ops get CPU autocast kernels that cast as CUDA's do. Which ops those are is read off
torch's dispatcher, where a CPU build has CUDA's autocast kernels too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dsexplore.torch_internals.patches import Patches

LOWER = frozenset(
    (
        *("_convolution", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
        *("addmv", "addr", "chain_matmul", "convolution", "einsum", "gru_cell", "linalg_multi_dot", "lstm_cell", "mv"),
        *("rnn_relu_cell", "rnn_tanh_cell"),
    )
)
"""Ops that CUDA's autocast runs in the lower precision, beside those that CPU's does too."""
WIDEST = frozenset(
    ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "index_put", "scatter_add", "tensordot", "vdot")
)
"""Ops that run in the widest dtype of their inputs."""
_OF_CUDA_ALONE = frozenset({"cudnn_convolution", "cudnn_convolution_transpose"})


def patch_autocast(patches: Patches) -> None:
    """Make ``torch.autocast("cuda")`` act on CPU tensors as it does on CUDA's."""
    enter: Callable[..., Any] = torch.autocast.__enter__
    leave: Callable[..., Any] = torch.autocast.__exit__

    def entered(context: Any) -> Any:
        if context.device == "cuda":
            context.__dict__.setdefault("_of_cpu", []).append(
                (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
            )
            torch.set_autocast_enabled("cpu", context._enabled)
            torch.set_autocast_dtype("cpu", context.fast_dtype)
        return enter(context)

    def left(context: Any, *exception: Any) -> Any:
        if context.device == "cuda":
            enabled, dtype = context._of_cpu.pop()
            torch.set_autocast_enabled("cpu", enabled)
            torch.set_autocast_dtype("cpu", dtype)
        return leave(context, *exception)

    for device in ("cpu", "cuda"):  # an autocast that the script entered, and an error left, ends with the block
        patches.callback(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
        patches.callback(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device))
    patches.callback(torch.clear_autocast_cache)
    patches.attribute(torch.autocast, "__enter__", entered)
    patches.attribute(torch.autocast, "__exit__", left)
    library = torch.library.Library("aten", "IMPL")
    patches.callback(library._destroy)
    for name in cuda_ops():
        namespace_free = name.removeprefix("aten::")
        base, _, overload = namespace_free.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        library.impl(namespace_free, partial(_cast_and_call, op, _rule(base)), "AutocastCPU")


@cache
def cuda_ops() -> list[str]:
    """Names of the ops that CUDA's autocast casts, and CPU's does not."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and name.removeprefix("aten::") not in _OF_CUDA_ALONE
        and has_kernel(name, "AutocastCUDA")
        and not has_kernel(name, "AutocastCPU")
    ]


Rule = Callable[[list[torch.dtype]], torch.dtype]


def _rule(base: str) -> Rule:
    if base in LOWER:
        return lambda dtypes: torch.get_autocast_dtype("cpu")
    if base in WIDEST:
        return lambda dtypes: torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")
    return lambda dtypes: torch.float32


def _cast_and_call(op: Any, rule: Rule, *args: Any, **kwargs: Any) -> Any:
    """Call an op, below autocast, with its inputs cast; one that is asked for a dtype gets its inputs as they are."""
    below: Any = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
    with below:
        if kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args):
            return op(*args, **kwargs)
        dtypes: list[torch.dtype] = []
        tree_map(lambda arg: dtypes.append(arg.dtype) if _casts(arg) else None, (args, kwargs))
        if not dtypes:
            return op(*args, **kwargs)
        dtype = rule(dtypes)
        args, kwargs = tree_map(lambda arg: arg.to(dtype) if _casts(arg) else arg, (args, kwargs))
        return op(*args, **kwargs)


def _casts(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.is_floating_point() and arg.dtype is not torch.float64
