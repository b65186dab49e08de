"""Hooks on module calls: they count each call, and note where in autograd's numbering it began and ended.

One global hook runs before every module's forward. On a module's first call it adds a hook of its own to that module,
which runs after the forward, with or without an exception.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any

from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.fx import GraphModule
from torch.nn.modules.module import _global_forward_pre_hooks

from dsexplore.capture import frame_kinds
from dsexplore.capture.autograd_nodes import NO_CALL, ModuleCall
from dsexplore.capture.modules import Modules
from dsexplore.capture.uncompiled import leave_to_python

_HOOK = -1
"""The key of our hooks, where torch counts up from 0: the same each time, so that what torch.compile compiled
with them is used again by the next recording."""
_ABOUT_OUR_HOOK = r"Using `torch\.compile\(module\)` when there are global hooks"


class ModuleHooks:
    """Reports module calls to `Modules` while installed; one at a time per process.

    Args:
        modules: where calls are reported.
    """

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self._hooked: dict[int, _HookedModule] = {}
        """By the identity of the hooked object."""
        self._filter: Any = None
        self._lock = threading.RLock()

    def install(self) -> None:
        """Begin to report module calls."""
        global _installed
        _installed = self
        for hook in (_before_forward, _after_forward):
            leave_to_python(hook.__code__)
        _global_forward_pre_hooks[_HOOK] = _before_forward
        warnings.filterwarnings("ignore", message=_ABOUT_OUR_HOOK)
        self._filter = warnings.filters[0]

    def uninstall(self) -> None:
        """Remove every hook."""
        global _installed
        _global_forward_pre_hooks.pop(_HOOK, None)
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined] # a list, whatever typeshed says
        with self._lock:
            _installed = None
            for reference in self._hooked.values():
                module = reference()
                for name in ("_forward_hooks", "_forward_hooks_always_called") if module is not None else ():
                    getattr(module, name, {}).pop(_HOOK, None)  # one that is only being copied may lack them yet
            self._hooked.clear()

    def hook(self, called: nn.Module) -> None:
        """Add the hook that runs after a module's forward; nothing once uninstalled, by another thread meanwhile."""
        with self._lock:
            if _installed is self:
                # The module's own last hook: what earlier hooks communicate still belongs to the module.
                called._forward_hooks[_HOOK] = _after_forward
                called._forward_hooks_always_called[_HOOK] = self.remember(called)  # type: ignore[assignment] # of any kind

    def remember(self, module: nn.Module) -> _HookedModule:
        """Remember that a module has our hook, so that `uninstall` removes it."""
        with self._lock:
            reference = self._hooked[id(module)] = _HookedModule(module)
            return reference


class _HookedModule(weakref.ref[nn.Module]):
    """A reference to a module with our hook, kept beside the hook: ``deepcopy`` copies both, and thereby reports the
    copied module."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _HookedModule | bool:
        copied, hooks = memo.get(id(self())), _installed
        return hooks.remember(copied) if copied is not None and hooks is not None else True

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (True,)  # torch's own value


_installed: ModuleHooks | None = None
"""The object that the two hooks report to. The hooks stay the same functions, so that torch.compile reuses its code."""


def _before_forward(called: nn.Module, _inputs: Any) -> None:
    """Report that a module's forward begins: the forward pre-hook of every module."""
    # Inside a compiled region hooks are replayed out of order: there a collective belongs to the compiled module.
    if is_dynamo_compiling():
        return
    hooks = _installed
    if hooks is None or (isinstance(called, GraphModule) and frame_kinds.inside_compiled()):
        return  # no longer recorded; or a compiled module's own graph
    if _HOOK not in called._forward_hooks:
        hooks.hook(called)
    modules, identity = hooks.modules, id(called)
    own = modules.own_calls
    in_progress = own.open
    module = modules.find(called)
    if in_progress and module.root is None:
        # torch calls no hook after a KeyboardInterrupt: where the program caught it, the calls it ended are still here.
        del in_progress[frame_kinds.calls_in_progress() - 1 :]
    if not in_progress or in_progress[-1].module is not module or in_progress[-1].called == identity:
        module.calls += 1  # not again for the module inside a wrapper
    if not in_progress:
        own.begin_outermost()
    frame, source = frame_kinds.call_around()
    call = ModuleCall(module, identity, frame, source)
    in_progress.append(call)
    own.boundaries.append(_get_sequence_nr())
    own.innermost.append(call)


def _after_forward(called: nn.Module, _inputs: Any, _output: Any) -> None:
    """A module's forward ended, with or without an exception."""
    if is_dynamo_compiling():
        return
    hooks = _installed
    if hooks is None:
        return
    own = hooks.modules.own_calls
    own.unwind(id(called))
    if not own.open:
        own.trim()
    own.boundaries.append(_get_sequence_nr())
    own.innermost.append(own.open[-1] if own.open else NO_CALL)
