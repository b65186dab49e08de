"""``torch.autocast("cuda")`` under the CUDA stand-in: CPU autocast, with the ops that CUDA's autocast casts.

A model sends activations, so their dtypes must be those of the GPU. CUDA's autocast runs more ops in fp32 than the
CPU's: softmax, layer norm, sums and others. These ops get CPU autocast kernels that cast as CUDA's do. The list of them
comes from torch's dispatcher, where a CPU build registers CUDA's autocast kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.autograd import AUTOCAST_ENTER, AUTOCAST_EXIT
from dsexplore._internal.torch_internals.dispatch import all_op_names, has_kernel_for, remove_kernels
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches

LOWER = frozenset(
    (
        *("_convolution", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
        *("addmv", "addr", "chain_matmul", "convolution", "einsum", "gru_cell", "linalg_multi_dot", "lstm_cell", "mv"),
        *("rnn_relu_cell", "rnn_tanh_cell"),
    )
)
"""Ops that CUDA's autocast runs in the lower precision, and the CPU's does not."""
WIDEST = frozenset(
    ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "index_put", "scatter_add", "tensordot", "vdot")
)
"""Ops that run in the widest dtype of their inputs."""
_CUDA_ONLY = frozenset({"cudnn_convolution", "cudnn_convolution_transpose"})
"""Ops that a CPU build cannot run."""


@cache
def cuda_ops() -> list[str]:
    """Return the names of the ops that CUDA's autocast casts and the CPU's does not."""
    return [
        name
        for name in all_op_names()
        if name.startswith("aten::")
        and _plain_name(name) not in _CUDA_ONLY
        and has_kernel_for(name, "AutocastCUDA")
        and not has_kernel_for(name, "AutocastCPU")
    ]


Rule = Callable[[list[torch.dtype]], torch.dtype]
"""Returns the dtype that an op runs in, from the dtypes of its inputs."""


def _rule(base: str) -> Rule:
    if base in LOWER:
        return lambda dtypes: torch.get_autocast_dtype("cpu")
    if base in WIDEST:
        return lambda dtypes: torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")
    return lambda dtypes: torch.float32


def _cast_and_call(op: Any, rule: Rule, *args: Any, **kwargs: Any) -> Any:
    """Call an op with its inputs cast, without autocast; leave the inputs as they are if the call names a dtype."""
    torch.set_autocast_enabled("cpu", False)
    try:
        if kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args):
            return op(*args, **kwargs)
        dtypes = [tensor.dtype for tensor in _castable((*args, *kwargs.values()))]
        if not dtypes:
            return op(*args, **kwargs)
        dtype = rule(dtypes)
        return op(*(_cast(arg, dtype) for arg in args), **{name: _cast(arg, dtype) for name, arg in kwargs.items()})
    finally:
        torch.set_autocast_enabled("cpu", True)


def _castable(args: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments that autocast casts, those in lists included."""
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _castable(arg)
        elif _is_castable(arg):
            yield arg


def _is_castable(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.is_floating_point() and arg.dtype is not torch.float64


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    if isinstance(arg, (list, tuple)):
        return [_cast(item, dtype) for item in arg]
    return arg.to(dtype) if _is_castable(arg) else arg


_BEFORE = "_dsexplore_cpu_settings"
"""Attribute of an autocast object: a stack of the CPU's settings, one for each time it was entered."""


def _entered(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``autocast.__enter__`` to give CPU autocast the settings of CUDA's, and save its own."""

    def enter(self: Any) -> Any:
        entered = original(self)
        if self.device == "cuda":
            before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            vars(self).setdefault(_BEFORE, []).append(before)
            _set_cpu(torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
        return entered

    return enter


def _left(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``autocast.__exit__`` to give CPU autocast back the settings that `_entered` saved."""

    def leave(self: Any, exc_type: Any, exc_val: Any, exc_tb: Any) -> Any:
        if self.device == "cuda":
            _set_cpu(*vars(self)[_BEFORE].pop())
        return original(self, exc_type, exc_val, exc_tb)

    return leave


def _set_cpu(enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)


def _keep_settings(patches: Patches, parts: Parts) -> None:
    """Restore the settings of autocast at the end of the block."""
    for device in ("cpu", "cuda"):  # after an error, the program may have left an autocast open
        patches.callback(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
        patches.callback(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device))
    patches.callback(torch.clear_autocast_cache)


def _register_kernels(patches: Patches, parts: Parts) -> None:
    """Register a CPU autocast kernel for each of `cuda_ops`, which casts as CUDA's autocast does."""
    library = torch.library.Library("aten", "IMPL")
    patches.callback(remove_kernels, library)
    for name in map(_plain_name, cuda_ops()):
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        library.impl(name, partial(_cast_and_call, op, _rule(base)), "AutocastCPU")


def _plain_name(name: str) -> str:
    return name.removeprefix("aten::")


PATCHES: tuple[Entry, ...] = (
    Change(
        "the settings of autocast", "a program's settings must end with the block", _keep_settings, when="cuda device"
    ),
    Patch(AUTOCAST_ENTER, "tensors are on the CPU, for which autocast is off", _entered, when="cuda device"),
    Patch(AUTOCAST_EXIT, "tensors are on the CPU, for which autocast was on", _left, when="cuda device"),
    Change("CPU autocast's kernels", "CUDA's autocast casts more ops", _register_kernels, when="cuda device"),
)
