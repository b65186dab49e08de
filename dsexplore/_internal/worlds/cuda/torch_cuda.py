"""Patches of ``torch.cuda``, ``torch.accelerator``, ``torch.version`` and ``torch.backends`` for the CUDA stand-in."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.cuda import (
    CUDA_IS_BUILT,
    CUDA_VERSION,
    CUDNN_IS_ACCEPTABLE,
    EVENTS,
    HIP_VERSION,
    STREAMS,
    TENSOR_TYPES,
    provide_driver,
)
from dsexplore._internal.torch_internals.dispatch import load_compiler
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.tensors import RECORD_STREAM
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.cuda.gpu import Gpu
from dsexplore._internal.worlds.cuda.streams import Event, Stream


def _load(patches: Patches, parts: Parts) -> None:
    """Import the compiler before the names of ``torch._C`` that it copies are replaced."""
    load_compiler()


def _provide(patches: Patches, parts: Parts) -> None:
    """Replace the functions by which ``torch.cuda`` asks a GPU's driver with those of the stand-in's."""
    provide_driver(patches, parts[Driver])


def _version(vendor: str, original: Any, parts: Parts) -> Any:
    """Replace ``torch.version.cuda`` or ``torch.version.hip`` by the target's version, if its GPU is of that vendor."""
    gpu = parts[Gpu]
    return gpu.runtime if gpu.vendor == vendor else original


class _OldType(type):
    """``torch.cuda.FloatTensor`` and similar legacy types: supports ``isinstance`` and ``.dtype``."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Tensor:
        made: Tensor = getattr(torch, cls.__name__)(*args).cuda()
        return made

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def _old_type(dtype: torch.dtype, name: str, original: Any, parts: Parts) -> type:
    """Replace a legacy type such as ``torch.cuda.FloatTensor`` by one that makes marked CPU tensors."""
    return _OldType(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})


PATCHES: tuple[Entry, ...] = (
    Change("the compiler's device interfaces", "they copy names of torch when imported", _load, when="cuda device"),
    Change("the functions that ask a GPU's driver", "there is none", _provide, when="cuda device"),
    *(Patch(target, "its class needs a GPU", lambda original, parts: Stream, when="cuda device") for target in STREAMS),
    *(Patch(target, "its class needs a GPU", lambda original, parts: Event, when="cuda device") for target in EVENTS),
    Patch(
        RECORD_STREAM,
        "C++ reads its arguments before a function mode sees the call, and accepts only real streams",
        lambda original, parts: lambda self, s: None,
        when="cuda device",
    ),
    *(
        Patch(
            target,
            "it makes tensors on a GPU",
            partial(_old_type, dtype, target.attribute),
            when="cuda device",
        )
        for dtype, target in TENSOR_TYPES.items()
    ),
    Patch(
        CUDA_IS_BUILT,
        "programs ask it whether they may use GPUs",
        lambda original, parts: lambda: True,
        when="cuda device",
    ),
    Patch(
        CUDNN_IS_ACCEPTABLE,
        "the weights of RNNs must keep the CPU's layout",
        lambda original, parts: lambda tensor: False,
        when="cuda device",
    ),
    Patch(
        CUDA_VERSION,
        "programs ask it for the version of CUDA",
        partial(_version, "nvidia"),
        when="cuda device",
    ),
    Patch(
        HIP_VERSION,
        "programs ask it for the version of ROCm",
        partial(_version, "amd"),
        when="cuda device",
    ),
)
