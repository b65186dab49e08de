"""`register_extension`: the registry of stand-ins for packages that need a GPU, dsexplore's and the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

Names = Mapping[str, object]
"""The content of a package by dotted name: ``{"layers.rotary.apply_rotary_emb": function}``."""

_BUILT_IN = {
    "flash_attn": ("flash_attn", "flash_attn_interface", "flash_attn_3"),
    "xformers": ("xformers",),
    "apex": ("apex", "amp_C"),
    "bitsandbytes": ("bitsandbytes",),
    "cut_cross_entropy": ("cut_cross_entropy",),
    "grouped_gemm": ("grouped_gemm",),
    "liger_kernel": ("liger_kernel",),
    "transformer_engine": ("transformer_engine",),
    "pynvml": ("pynvml",),
    "deepspeed_ops": (
        "deepspeed.ops.adam.fused_adam_op",
        "deepspeed.ops.adam.cpu_adam_op",
        "deepspeed.ops.lamb.fused_lamb_op",
        "deepspeed.ops.lion.fused_lion_op",
        "deepspeed.ops.lion.cpu_lion_op",
        "deepspeed.ops.adagrad.cpu_adagrad_op",
    ),
}
"""{module of this folder: packages that it provides stand-ins for}."""
WITHOUT_STAND_IN = frozenset({"deep_ep", "deep_gemm"})
"""Packages for GPUs that have no stand-in."""
_factories: dict[str, tuple[Callable[[], Names], ...]] = {}


@names_arguments
def register_extension(name: str, factory: Callable[[], Names]) -> None:
    """Register a stand-in for a package that is not installed, such as one that needs a GPU.

    In a simulated world of GPUs, ``import`` finds it if the package is not installed, and a note of the trace says so.
    A second registration of a package adds names to it.

    Args:
        name: name of the package in ``import``.
        factory: called at the first import in a world. Returns {dotted name in the package: function or class}, made
            of plain torch, with the shapes, dtypes and gradients of the real ones.

    Raises:
        UsageError: `name` is not the name of a package, or `factory` is not callable.

    Example:
        >>> import torch
        >>> def fast_kernels():
        ...     def fused_bias_gelu(x, bias):
        ...         return torch.nn.functional.gelu(x + bias)
        ...     return {"ops.fused_bias_gelu": fused_bias_gelu}
        >>> register_extension("fast_kernels", fast_kernels)  # from fast_kernels.ops import fused_bias_gelu
    """
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"name={name!r} is not a name of a package: give it as it is imported, like 'flash_attn'")
    if not callable(factory):
        raise UsageError(
            f"factory={factory!r} is not a function: give one that returns functions and classes of {name} by name, "
            "like lambda: {'ops.gelu': torch.nn.functional.gelu}"
        )
    _factories[name] = (*_factories.get(name, ()), factory)


def registered_package(module: str) -> str | None:
    """Return the registered package that a module belongs to, or None.

    Example:
        >>> registered_package("flash_attn.layers.rotary")
        'flash_attn'
    """
    while module and module not in _factories:
        module = module.rpartition(".")[0]
    return module or None


def names_of(package: str) -> Names:
    """Return {name: stand-in} of a registered package.

    Raises:
        UsageError: a factory did not return a mapping.
    """
    names: dict[str, object] = {}
    for factory in _factories[package]:
        content = factory()
        if not isinstance(content, Mapping):
            raise UsageError(
                f"the factory that was registered for {package} returned {content!r}: return functions and classes by "
                "name, like {'ops.gelu': torch.nn.functional.gelu}"
            )
        names |= content
    return names


def _built_in_names(module: str, package: str) -> Names:
    """Import a module of this folder, and return {name: stand-in} of a package."""
    extensions: Mapping[str, Names] = import_module(f"{__package__}.{module}").EXTENSIONS
    return extensions[package]


for _module, _packages in _BUILT_IN.items():
    for _package in _packages:
        register_extension(_package, partial(_built_in_names, _module, _package))
