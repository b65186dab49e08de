"""Features that no CPU has: CUDA graphs, kernels and extensions give one error that names them and a remedy.

``torch.compile`` runs the code as it is, and says so once; attention kernels that only GPUs have give way to others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.accelerator.graphs
import torch.cuda.graphs
import torch.nn.attention
from torch import nn
from torch.nn.attention import SDPBackend

from dsexplore.errors import UsageError
from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches

GRAPHS = "capture no CUDA graph here (frameworks have a switch for it), as a graph sends what the code in it sends"
KERNELS = "take an implementation that torch has itself (attn_implementation='sdpa', a fallback, foreach)"
EXTENSIONS = "take an implementation in Python for this run: no extension can be built or run for a GPU here"
EAGER = (
    "torch.compile is left out where a CPU stands in for a GPU: the code runs as it is written, so collectives that a "
    "compiler would fuse or reorder are shown one by one"
)


def refuse(what: str, remedy: str) -> Callable[..., NoReturn]:
    """A function that raises, whatever it is called with.

    Args:
        what: name of what is refused.
        remedy: what to do instead.
    """

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"{what} needs a GPU, and a CPU stands in for it: {remedy}")

    return refused


def patch_refused(patches: Patches) -> None:
    """Make features that need a GPU raise `UsageError`, and ``torch.compile`` return its function as it is."""
    for owner, name in (
        (torch.cuda, "CUDAGraph"),
        (torch.cuda, "graph"),
        (torch.cuda, "make_graphed_callables"),
        (torch.cuda.graphs, "CUDAGraph"),
        (torch.cuda.graphs, "graph"),
        (torch.cuda.graphs, "make_graphed_callables"),
        (torch.accelerator, "Graph"),
        (torch.accelerator.graphs, "Graph"),
    ):
        patches.attribute(owner, name, _Refused(name, (), {"what": f"torch.cuda.{name}", "remedy": GRAPHS}))
    patches.attribute(torch.cuda, "_compile_kernel", refuse("a CUDA kernel in text", KERNELS))
    patches.attribute(torch.cuda, "is_current_stream_capturing", lambda: False)
    patches.attribute(nn.DataParallel, "__init__", _DATA_PARALLEL)
    patches.function(nn.parallel.data_parallel, lambda _original: _DATA_PARALLEL)
    patches.function(torch.compile, _leave_out_compiler)
    patches.function(torch.nn.attention._sdpa_kernel, _with_math)
    on_import(patches, "torch.utils.cpp_extension", partial(_refuse_extensions, patches))
    on_import(patches, "triton.runtime.jit", partial(_refuse_kernels, patches))


class _Refused(type):
    """A class that still can be named in annotations and `isinstance`, but has no instances."""

    what: str
    remedy: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(cls.what, cls.remedy)()


_DATA_PARALLEL = refuse(
    "nn.DataParallel, which drives all GPUs of a node from one process,",
    "use torch.nn.parallel.DistributedDataParallel, one process for each GPU, as torch recommends",
)


def _leave_out_compiler(original: Callable[..., Any]) -> Callable[..., Any]:
    said = False

    def compile_nothing(model: Any = None, **options: Any) -> Any:
        nonlocal said
        if not said and not options.get("disable"):
            said = True
            warnings.warn(EAGER, stacklevel=3)
        if model is None:
            return lambda function: compile_nothing(function, **options)
        is_module = isinstance(model, nn.Module) and not options.get("disable")
        return _as_compiled(model) if is_module else model

    return compile_nothing


def _as_compiled(model: nn.Module) -> nn.Module:
    """A module in torch's wrapper of compiled ones, whose ``_orig_mod`` scripts ask for, with nothing compiled."""
    from torch._dynamo.eval_frame import OptimizedModule  # loading it takes a while, and few scripts compile

    if isinstance(model, OptimizedModule):
        return model
    return OptimizedModule(model, lambda function: function)  # type: ignore[arg-type] # which it only calls


def _with_math(original: Callable[..., None]) -> Callable[..., None]:
    def choose(backends: Any, set_priority: bool = False) -> None:
        chosen = list(backends)
        original(chosen if SDPBackend.MATH in chosen else [*chosen, SDPBackend.MATH], set_priority)

    return choose


def _refuse_extensions(patches: Patches, module: ModuleType) -> None:
    for name in ("load", "load_inline", "CUDAExtension"):
        patches.attribute(module, name, refuse(f"torch.utils.cpp_extension.{name}", EXTENSIONS))


def _refuse_kernels(patches: Patches, module: ModuleType) -> None:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> NoReturn:
        name = getattr(getattr(kernel, "fn", None), "__qualname__", "of unknown name")
        refuse(f"the Triton kernel {name}", KERNELS)()

    patches.attribute(module.JITFunction, "run", run)
