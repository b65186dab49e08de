"""``nn.Module``: parameters and children as it holds them, and the modules that wrap another one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

from dsexplore.torch_internals.names import TorchName

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""The names under which torch.compile, checkpointing and ``FullyShardedDataParallel`` hold the module that they wrap.
None of them is part of a parameter's name as the program knows it."""

own_parameters: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter("_parameters")
"""Return the parameters of a module itself, by name."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside of all wrappers of `WRAPPERS`; the module itself where it is no wrapper."""
    children = module._modules
    for name in WRAPPERS:
        inner = children[name] if name in children else None  # noqa: SIM401 # a script module's has no get
        if inner is not None:
            return unwrapped(inner)
    return module


def without_wrappers(path: str) -> str:
    """Return a module's or parameter's path without the names of wrappers: ``"0._orig_mod.w"`` is ``"0.w"``."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hooks_of(module: nn.Module) -> list[list[Callable[..., Any]]]:
    """Return the hooks of a module: before and after forward, before and after backward."""
    return [list(getattr(module, name).values()) for name in _HOOKS]


def hooks_of_all() -> list[list[Callable[..., Any]]]:
    """Return the hooks that are called for each module, as `hooks_of` does those of one."""
    return [list(getattr(nn.modules.module, f"_global{name}").values()) for name in _HOOKS]


def is_compiled(module: nn.Module) -> bool:
    """Return True if torch.compile was asked to compile this very module."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


APPLY = TorchName("torch.nn:Module._apply")
"""The method by which ``module.to`` and its kin convert parameters."""

TRUNC_NORMAL = TorchName("torch.nn.init:_no_grad_trunc_normal_")
CTC_LOSS = TorchName("torch.nn.functional:ctc_loss")
PAD_PACKED_SEQUENCE = TorchName("torch._VF:_pad_packed_sequence")
TRACE = TorchName("torch.jit:trace")
TRACE_MODULE = TorchName("torch.jit:trace_module")

OPTIMIZED_MODULE = TorchName("torch._dynamo.eval_frame:OptimizedModule")
"""The class of the wrapper in which torch.compile returns a module."""

FLEX_ATTENTION_UNCOMPILED = TorchName("torch.nn.attention.flex_attention:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
"""The flag by which ``flex_attention`` runs its plain form where the program has not compiled it."""
