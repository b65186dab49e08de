"""Features that need a GPU: CUDA graphs, Triton kernels and extensions raise an error that names them and a remedy.

``torch.compile`` runs the code eagerly and warns once. An attention kernel that the CPU lacks falls back to the math
backend.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from torch import nn
from torch.nn.attention import SDPBackend

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.cuda import (
    CHOOSE_ATTENTION,
    COMPILE,
    DATA_PARALLEL,
    DATA_PARALLEL_FUNCTION,
    EXTENSIONS,
    GRAPHS,
    IS_CAPTURING,
    TREES_OF_GRAPHS,
    TRITON_RUN,
)
from dsexplore._internal.torch_internals.modules import OPTIMIZED_MODULE
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches

NO_GRAPHS = "switch CUDA graphs off for this run (frameworks have an option for it); a graph sends what its code sends"
NO_KERNELS = "use an implementation of torch's own (attn_implementation='sdpa', a fallback, foreach)"
NO_EXTENSIONS = "use an implementation in Python for this run: extensions for GPUs cannot be built or run here"
NO_DATA_PARALLEL = "use torch.nn.parallel.DistributedDataParallel, one process for each GPU, as torch recommends"
EAGER = (
    "torch.compile does nothing where a CPU stands in for a GPU: the code runs eagerly, so collectives that a "
    "compiler would fuse or reorder are shown one by one"
)


def refuse(name: str, remedy: str, *entry: Any) -> Callable[..., NoReturn]:
    """Return a function that raises `UsageError` with any arguments.

    Args:
        name: name of the refused feature, for the error.
        remedy: advice at the end of the error.
        entry: the original and the parts that a `Patch` passes; not used.
    """

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"{name} needs a GPU, and a CPU stands in for it: {remedy}")

    return refused


class _RefusedClass(type):
    """Metaclass of a class that works in annotations and `isinstance`, but raises when it is called."""

    refused: Callable[..., NoReturn]

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls.refused(*args, **kwargs)


def _refused_class(name: str, original: Any, parts: Parts) -> type:
    """Replace a class of ``torch.cuda`` by one that raises when it is called."""
    return _RefusedClass(name, (), {"refused": staticmethod(refuse(f"torch.cuda.{name}", NO_GRAPHS))})


def _refuse_triton(original: Any, parts: Parts) -> Callable[..., NoReturn]:
    """Replace the method that starts a Triton kernel by one that raises, with the name of the kernel."""

    def run(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        name = getattr(getattr(self, "fn", None), "__qualname__", "of unknown name")
        refuse(f"the Triton kernel {name}", NO_KERNELS)()

    return run


def _skip_compiler(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace ``torch.compile`` by a function that returns what it is given, and warns once."""
    warned = False

    def compile_nothing(model: Any = None, **options: Any) -> Any:
        nonlocal warned
        if not warned and not options.get("disable"):
            warned = True
            warnings.warn(EAGER, stacklevel=3)
        if model is None:
            return lambda function: compile_nothing(function, **options)
        is_module = isinstance(model, nn.Module) and not options.get("disable")
        return _wrap_as_compiled(model) if is_module else model

    return compile_nothing


def _wrap_as_compiled(model: nn.Module) -> nn.Module:
    """Return a module in torch's wrapper of compiled modules, which programs unwrap; nothing is compiled."""
    wrapper = OPTIMIZED_MODULE.get()
    compiled: nn.Module = model if isinstance(model, wrapper) else wrapper(model, lambda function: function)
    return compiled


def _add_graph_trees(patches: Patches, parts: Parts) -> None:
    """Add an empty module of CUDA graph trees, for ``torch.compiler.reset`` and ``cudagraph_mark_step_begin``."""
    if TREES_OF_GRAPHS not in sys.modules:
        module = ModuleType(TREES_OF_GRAPHS, "Replaces the module of CUDA graph trees; there are none.")
        vars(module).update(mark_step_begin=lambda: None, reset_cudagraph_trees=lambda: None)
        sys.modules[TREES_OF_GRAPHS] = module
        patches.callback(sys.modules.pop, TREES_OF_GRAPHS, None)


def _allow_math(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``torch.nn.attention._sdpa_kernel`` to allow the math kernel too."""

    def choose(backends: Any, set_priority: bool = False) -> None:
        backends = list(backends)
        original(backends if SDPBackend.MATH in backends else [*backends, SDPBackend.MATH], set_priority)

    return choose


DATA_PARALLEL_MODULE = "nn.DataParallel, which drives all GPUs of a node from one process,"
_NEEDS_GPU = "it needs a GPU"

PATCHES: tuple[Entry, ...] = (
    *(
        Patch(
            target,
            _NEEDS_GPU,
            partial(_refused_class, target.attribute),
            when="cuda device",
        )
        for target in GRAPHS
    ),
    Patch(IS_CAPTURING, "it asks the driver in C++", lambda original, parts: lambda: False, when="cuda device"),
    Patch(DATA_PARALLEL, _NEEDS_GPU, partial(refuse, DATA_PARALLEL_MODULE, NO_DATA_PARALLEL), when="cuda device"),
    Patch(
        DATA_PARALLEL_FUNCTION,
        _NEEDS_GPU,
        partial(refuse, DATA_PARALLEL_MODULE, NO_DATA_PARALLEL),
        when="cuda device",
        by_code=True,
    ),
    Patch(COMPILE, "compiled code calls no function mode", _skip_compiler, when="cuda device", by_code=True),
    Change("the compiler's CUDA graphs", "there are none to reset", _add_graph_trees, when="cuda device"),
    Patch(CHOOSE_ATTENTION, "the CPU may lack the chosen kernel", _allow_math, when="cuda device", by_code=True),
    *(
        Patch(
            target,
            _NEEDS_GPU,
            partial(refuse, f"torch.utils.cpp_extension.{target.attribute}", NO_EXTENSIONS),
            when="cuda device",
            on_import=True,
        )
        for target in EXTENSIONS
    ),
    Patch(TRITON_RUN, _NEEDS_GPU, _refuse_triton, when="cuda device"),
)
