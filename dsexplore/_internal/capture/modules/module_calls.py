"""Observes module calls: counts them, and records the autograd sequence numbers at which each began and ended.

While a recording is open, `_call` replaces ``nn.Module.__call__`` and calls the original. Module hooks are not used:
they would change each module and its copies, make torch take its slow path, and not run after a KeyboardInterrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.fx import GraphModule

from dsexplore._internal.capture.modules.autograd_nodes import NO_CALL, ModuleCall, ThreadCalls
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.torch_internals.autograd import next_node_number
from dsexplore._internal.torch_internals.dispatch import leave_frame_to_python, leave_to_python


class ModuleCalls:
    """Reports module calls to `Modules` while installed; one at a time per process.

    Args:
        modules: the modules that calls are counted in.
        outermost: called when a call begins that is inside no other, with the module's entry and whether gradients are
            enabled.
    """

    def __init__(self, modules: Modules, outermost: Callable[[ModuleEntry, bool], None] = lambda *_: None) -> None:
        self.modules = modules
        self.outermost = outermost
        self.observers: list[Callable[[ModuleEntry, Any], None]] = []
        """Functions that are called with the entry of each module that has returned, and its output."""

    def install(self) -> None:
        """Begin to report module calls."""
        global _installed, _call_module, _is_beneath_another
        leave_frame_to_python(_call.__code__)
        leave_to_python(_begin.__code__)
        leave_to_python(_end.__code__)
        leave_to_python(_report.__code__)
        frame_kinds.mark_module_call(_call.__code__)
        if not _is_beneath_another or nn.Module.__call__ is _call_module:
            _call_module, _is_beneath_another = nn.Module.__call__, False
            nn.Module.__call__ = _call  # type: ignore[method-assign]
        _installed = self

    def uninstall(self) -> None:
        """Stop reporting module calls."""
        global _installed, _is_beneath_another
        _installed = None
        if nn.Module.__call__ is _call:
            nn.Module.__call__, _is_beneath_another = _call_module, False  # type: ignore[method-assign]
        else:
            _is_beneath_another = True


_installed: ModuleCalls | None = None
_call_module: Callable[..., Any] = nn.Module.__call__
"""The function that `_call` replaces: torch's, or the program's replacement of it."""
_is_beneath_another = False
"""True if the program has replaced `_call` by a function that may call it: then `_call` stays installed."""


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, and report where the call begins and ends."""
    __tracebackhide__ = True  # IPython and pytest omit this frame from tracebacks
    # Modules inside a compiled region are not observed: all of it belongs to the compiled module.
    begun = _begin(self, args, kwargs) if not is_dynamo_compiling() else None
    if begun is None:
        return _call_module(self, *args, **kwargs)
    try:
        result = _call_module(self, *args, **kwargs)
        if _installed is not None and _installed.observers:
            _report(_installed, *begun, result)
        return result
    finally:
        _end(*begun)


def _begin(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ThreadCalls, int] | None:
    """Report that a module's call begins.

    Returns:
        The calls of this thread, and how many were in progress before; None if the call is not observed.
    """
    observer = _installed
    if observer is None or (isinstance(called, GraphModule) and frame_kinds.inside_compiled()):
        return None  # the recording has ended, or this is the graph of a compiled module
    modules, identity = observer.modules, id(called)
    thread_calls = modules.own.calls
    in_progress = thread_calls.open
    depth = len(in_progress)
    module = modules.find(called)
    if not depth:
        module.calls += 1
        thread_calls.begin_outermost()
        if not thread_calls.is_warm_up:
            observer.outermost(module, not thread_calls.without_gradients)
    elif in_progress[-1].module is not module or in_progress[-1].called == identity:
        module.calls += 1  # a call through a wrapper counts once
    frame = sys._getframe(1)
    sources = modules.lines.innermost(frame.f_back)
    call = ModuleCall(
        module, identity, frame=id(frame), sources=sources, input=thread_calls.inputs.number_of(args, kwargs)
    )
    try:
        in_progress.append(call)
        thread_calls.add_boundary(next_node_number(), call)
    except BaseException:  # Ctrl-C between these two lines
        del in_progress[depth:]
        raise
    return thread_calls, depth


def _report(observer: ModuleCalls, thread_calls: ThreadCalls, depth: int, result: Any) -> None:
    """Report a module's output; that of a module inside a wrapper is reported once, for the wrapper."""
    call = thread_calls.open[depth]
    module = call.module
    if module is None or (depth and thread_calls.open[depth - 1].module is module and call.called != id(module)):
        return
    for report in observer.observers:
        report(module, result)


def _end(thread_calls: ThreadCalls, depth: int) -> None:
    """Report that a module's call has ended, and all calls inside it."""
    del thread_calls.open[depth:]
    if not depth:
        thread_calls.end_outermost()
    thread_calls.add_boundary(next_node_number(), thread_calls.open[-1] if depth else NO_CALL)
