"""Ops that torch has on GPUs alone, computed on the CPU: matrix products whose result has a dtype of its own, and
histograms of whole numbers, by which mixtures of experts count tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import mark
from dsexplore.worlds.cuda.function_mode import StandInMode, handles

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def patch_kernels(patches: Patches) -> None:
    """Give the CPU kernels of these ops, for as long as it has none itself."""
    library = torch.library.Library("aten", "IMPL")
    patches.callback(library._destroy)
    for name in PRODUCTS:
        product = getattr(torch, name)
        for overload, kernel in (("dtype", _product), ("dtype_out", _product_out)):
            op = f"{name}.{overload}"
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "CPU"):
                library.impl(op, partial(kernel, product), "CPU")


def _product(product: Callable[..., Tensor], *args: Any, **scales: Any) -> Tensor:
    """The product in the dtype that is asked for: the last positional argument, behind the tensors."""
    *tensors, dtype = args
    return product(*(tensor.to(dtype) for tensor in tensors), **scales)


def _product_out(product: Callable[..., Tensor], *args: Any, out: Tensor, **scales: Any) -> Tensor:
    return out.copy_(_product(product, *args, **scales))


@handles(torch.histc, Tensor.histc)
def _histogram(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A histogram, whose counts have the dtype of what was counted."""
    tensor = args[0] if args else kwargs["input"]
    if tensor.is_floating_point():
        counts = func(*args, **kwargs)
    else:
        kwargs = {name: value for name, value in kwargs.items() if name != "input"}
        counts = func(tensor.double(), *args[1:], **kwargs).to(tensor.dtype)
    mark(counts, mode.believed(tensor))
    return counts
