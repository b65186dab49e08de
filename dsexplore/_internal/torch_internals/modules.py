"""``nn.Module``: its dicts of parameters and children, its hooks, and modules that wrap another one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

from dsexplore._internal.torch_internals.names import TorchName

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Attributes in which torch.compile, checkpointing and ``FullyShardedDataParallel`` hold the module that they wrap.
The parameter names that the program sees do not contain them."""

own_parameters: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter("_parameters")
"""Return {name: parameter} of a module, without its children."""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside all its `WRAPPERS`; the module itself if it is not a wrapper."""
    children = module._modules
    for name in WRAPPERS:
        inner = children[name] if name in children else None  # noqa: SIM401 # the dict of a script module has no get
        if inner is not None:
            return unwrapped(inner)
    return module


def without_wrappers(path: str) -> str:
    """Return a module's or parameter's path without the names of wrappers: ``"0._orig_mod.w"`` is ``"0.w"``."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hooks_of(module: nn.Module) -> list[list[Callable[..., Any]]]:
    """Return the hooks of a module in four lists: before and after forward, before and after backward."""
    return [list(getattr(module, name).values()) for name in _HOOKS]


def hooks_of_all() -> list[list[Callable[..., Any]]]:
    """Return the global module hooks, in the form of `hooks_of`."""
    return [list(getattr(nn.modules.module, f"_global{name}").values()) for name in _HOOKS]


def is_compiled(module: nn.Module) -> bool:
    """Return True if this module itself was compiled with torch.compile."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


APPLY = TorchName("torch.nn:Module._apply")
"""Method with which ``module.to``, ``module.half`` and others convert parameters."""

TRUNC_NORMAL = TorchName("torch.nn.init:_no_grad_trunc_normal_")
CTC_LOSS = TorchName("torch.nn.functional:ctc_loss")
PAD_PACKED_SEQUENCE = TorchName("torch._VF:_pad_packed_sequence")
TRACE = TorchName("torch.jit:trace")
TRACE_MODULE = TorchName("torch.jit:trace_module")

OPTIMIZED_MODULE = TorchName("torch._dynamo.eval_frame:OptimizedModule")
"""Class of the wrapper that torch.compile returns for a module."""

FLEX_ATTENTION_UNCOMPILED = TorchName("torch.nn.attention.flex_attention:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
"""Flag that makes uncompiled ``flex_attention`` run its unfused implementation."""
TRANSFORMERS_HAS_FLASH = TorchName("transformers.modeling_flash_attention_utils:is_flash_attn_2_available")
TRANSFORMERS_FLASH_CHECK = TorchName("transformers.modeling_utils:PreTrainedModel._flash_attn_import_error")
"""Checks of transformers before it imports flash attention for a model that uses it."""
