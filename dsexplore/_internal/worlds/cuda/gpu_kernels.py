"""CPU kernels for ops that torch supports on GPUs only: matrix products with an output dtype, integer histograms.

Mixtures of experts count their tokens with integer histograms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.patches import Entry, Kernel, Parts
from dsexplore._internal.worlds.cuda.device_marks import device_of, place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode, implements

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def _product(product: Callable[..., Tensor], *args: Any, out: Tensor | None = None, **scales: Any) -> Tensor:
    """Return the product in the requested dtype, which is the last positional argument."""
    *tensors, dtype = args
    result = product(*(tensor.to(dtype) for tensor in tensors), **scales)
    return result if out is None else out.copy_(result)


def _kernel(product: Callable[..., Tensor], parts: Parts) -> Callable[..., Tensor]:
    """Return a kernel for the CPU of a product that torch has on GPUs alone."""
    return partial(_product, product)


@implements(torch.histc, Tensor.histc)
def _histogram(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a histogram of floats or, by way of float64, of integers; its counts have the dtype of the input."""
    tensor = args[0] if args else kwargs["input"]
    if tensor.is_floating_point():
        counts = func(*args, **kwargs)
    else:
        kwargs = {name: value for name, value in kwargs.items() if name != "input"}
        counts = func(tensor.double(), *args[1:], **kwargs).to(tensor.dtype)
    place(counts, device_of(tensor))
    return counts


PATCHES: tuple[Entry, ...] = tuple(
    Kernel(
        f"aten::{name}.{overload}",
        "CPU",
        "torch has this product on GPUs alone",
        partial(_kernel, getattr(torch, name)),
        when="cuda device",
        only_if_missing=True,
    )
    for name in PRODUCTS
    for overload in ("dtype", "dtype_out")
)
