"""The modules of a recording: a tree of names per model, their calls, and the module that made an autograd node.

Names are resolved when tables are made, not when modules are first called, so a model whose parts ran before the whole
still gets one tree. `module_calls` reports each call here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.capture.modules.autograd_nodes import (
    NO_CALL,
    ModuleCall,
    OwnCalls,
    ThreadCalls,
    calls_of_forward,
)
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.parameters import ParameterRecord, ParameterRecords
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.model_names import class_name
from dsexplore._internal.torch_internals.autograd import AccumulateGrad, current_graph_task, current_node, node_number
from dsexplore._internal.torch_internals.modules import own_parameters, unwrapped, without_wrappers


@dataclass
class Modules:
    """The modules of one process, from the first recording that is opened to the last one that is closed.

    Args:
        warn: called with a class name and a message when a model cannot be read.
    """

    warn: Callable[[str, str], None]
    lines: frame_kinds.UserLines = field(default_factory=frame_kinds.UserLines)
    """Lines of the user's program that call modules."""
    _entries: dict[int, ModuleEntry] = field(default_factory=dict)
    """{id of a module: the latest module with that id}."""
    _wrappers: dict[int, tuple[weakref.ref[nn.Module], ModuleEntry]] = field(default_factory=dict)
    """{id of a wrapper around a module: (wrapper, the module's entry)}."""
    _met: list[ModuleEntry] = field(default_factory=list)
    _roots: list[ModuleEntry] = field(default_factory=list)
    _parameters: ParameterRecords = field(default_factory=ParameterRecords)
    _threads: list[ThreadCalls] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.own = OwnCalls(self._threads)
        """The module calls of the thread that reads its ``calls``."""

    def release(self) -> None:
        """Drop all references to meshes and to code; entries and layouts stay."""
        with self._lock:
            self._parameters.release()
            self.lines.release()

    @property
    def models(self) -> Sequence[ModuleEntry]:
        """Outermost modules so far, the newest last."""
        return self._roots

    def find(self, module: nn.Module) -> ModuleEntry:
        """Return the entry of a module; a new one is added to its model's tree."""
        entry = self._entries.get(id(module))
        if entry is not None and entry.reference() is module:
            return entry
        return self._wrapped_entry(module) or self._discover(module)

    def _lookup(self, module: nn.Module) -> ModuleEntry | None:
        entry = self._entries.get(id(module))
        return entry if entry is not None and entry.reference() is module else self._wrapped_entry(module)

    def _wrapped_entry(self, module: nn.Module) -> ModuleEntry | None:
        """Return the entry of the module inside a known wrapper."""
        wrapper, entry = self._wrappers.get(id(module), (None, None))
        return entry if wrapper is not None and wrapper() is module else None

    def call_of_node(self, node: Any, called_here: bool) -> ModuleCall:
        """Return the module call that made an autograd node.

        For the node that accumulates a parameter's gradient, it is the module that holds the parameter.

        Args:
            node: the node that is running in this thread; None for none.
            called_here: whether backward is known to have been called in this thread.

        Returns:
            `NO_CALL` if no module made it.
        """
        if node is None:
            return NO_CALL
        if isinstance(node, AccumulateGrad):
            return ModuleCall(self.holder(node.variable))
        calls = self.own.calls
        if not (called_here and calls.boundaries):
            waiting = () if called_here else frame_kinds.threads_in_engine()
            calls = calls_of_forward(self._threads, calls, waiting)
        return calls.call_of(node_number(node))

    def assign_last_node(self, call: ModuleCall) -> None:
        """Assign the newest autograd node to a call that began unobserved."""
        thread_calls = self.own.calls
        if call.module is not None and thread_calls.current is not call.module:
            thread_calls.assign_last_node(call)

    def holder(self, variable: torch.Tensor) -> ModuleEntry | None:
        """Return the module that holds this parameter; None if there is none."""
        place = self.place_of(variable)
        return place[0] if place is not None else None

    def place_of(self, variable: torch.Tensor) -> tuple[ModuleEntry, str] | None:
        """Return the module that holds this parameter, and its name there; None if there is none."""
        with self._lock:  # other threads go on meeting modules
            entries, wrappers = list(self._entries.values()), list(self._wrappers.values())
        for reference, module in chain(((entry.reference, entry) for entry in entries), wrappers):
            alive = reference()
            if alive is not None:
                for name, parameter in own_parameters(alive).items():
                    if parameter is variable:
                        return module, name
        return None

    def enclosing(self, inner: ModuleEntry | None, test: Callable[[nn.Module], bool]) -> ModuleEntry | None:
        """Return the innermost module that passes a test and holds `inner`, or is it.

        Args:
            inner: a module; None if it is not known.
            test: whether a module is one of those that are looked for.

        Returns:
            the only module that passes the test if none of them holds `inner`; None for none or several.
        """
        with self._lock:
            passing = [
                candidate for candidate in self._met if (module := candidate.reference()) is not None and test(module)
            ]
        around = [candidate for candidate in passing if inner is not None and candidate.holds(inner)]
        if around:
            return max(around, key=lambda candidate: len(candidate.path))
        return passing[0] if len(passing) == 1 else None

    def _discover(self, module: nn.Module) -> ModuleEntry:
        with self._lock:
            try:
                return self._place(module)
            except ClosedWorldError:  # the call itself says so
                return self._lookup(module) or self._add_root(module)
            except Exception as fault:
                kind = class_name(module)
                self.warn(
                    kind, f"dsexplore could not read all of the model around {kind}, whose call goes on: {fault!r}"
                )
                return self._lookup(module) or self._add_root(module)

    def _place(self, module: nn.Module) -> ModuleEntry:
        """Add a new module: to the model being called if it is part of it, else as a root."""
        inner = unwrapped(module)
        if inner is not module:
            entry = self.find(inner)
            self._wrappers[id(module)] = weakref.ref(module), entry
            return entry
        for outermost in self.own.calls.open[:1]:
            caller = outermost.module
            root = caller.root or caller if caller is not None else None
            model = root.reference() if root is not None else None
            if root is not None and model is not None and any(part is module for part in model.modules()):
                self._add_tree(root, model)  # the module was added to its model after the model's first call
                return self._entries[id(module)]
        root = self._add_root(module)
        self._add_tree(root, module)
        return root

    def _add_root(self, model: nn.Module) -> ModuleEntry:
        root = ModuleEntry(weakref.ref(model), class_name(model) or "Module")
        root.label = self._free_label(root.type)
        self._entries[id(model)] = root
        self._met.append(root)
        self._roots.append(root)
        return root

    def _free_label(self, wanted: str) -> str:
        """Return `wanted`, with the first number that makes it unique if it is taken: ``Llama#2``."""
        labels = {root.label for root in self._roots}
        label, number = wanted, 1
        while label in labels:
            number += 1
            label = f"{wanted}#{number}"
        return label

    def _add_tree(self, root: ModuleEntry, model: nn.Module) -> None:
        """Add all modules of a model below its root, and read their parameters."""
        placed = self._placed(root, model)
        try:
            self._parameters.read(model, placed)
        finally:
            for _ in placed:  # behind a parameter that cannot be read, too
                pass

    def _placed(self, root: ModuleEntry, model: nn.Module) -> Iterator[tuple[nn.Module, ModuleEntry]]:
        """Add the modules of a model below its root one by one, and return each with its entry."""
        has_wrappers = False
        for position, (path, part) in enumerate(model.named_modules()):
            module = self._lookup(part)
            is_wrapper = unwrapped(part) is not part
            has_wrappers = has_wrappers or is_wrapper
            if part is not model and not is_wrapper:
                if module is None:
                    module = ModuleEntry(weakref.ref(part), class_name(part))
                    self._entries[id(part)] = module
                    self._met.append(module)
                elif module in self._roots:
                    self._roots.remove(module)  # it ran on its own before, and is part of a larger model
                if module.root not in self._roots or module.root is root:  # else shared with a model met before
                    module.path = without_wrappers(path) if has_wrappers else path
                    module.root, module.position = root, position
            if module is not None:
                yield part, module

    def running(self) -> ModuleEntry | None:
        """Return the module that runs in this thread; in backward, the module that made the running node in forward."""
        current = self.own.calls.current
        if current is not None or current_graph_task() == -1:
            return current
        return self.call_of_node(current_node(), called_here=False).module

    def differentiable_calls(self) -> int:
        """Return the number of outermost calls so far, in all threads, that began with gradients enabled."""
        return sum(thread.with_gradients for thread in self._threads)

    def in_forward(self) -> bool:
        """Return True if a module's forward runs in this thread."""
        return bool(self.own.calls.open)

    def meshes(self) -> list[DeviceMesh]:
        """Return the meshes of all parameters."""
        with self._lock:
            return self._parameters.meshes()

    def calls(self) -> dict[int, int]:
        """Return {id of an entry: number of its calls so far}."""
        with self._lock:
            return {id(module): module.calls for module in self._met}

    def in_order(self) -> Iterator[ModuleEntry]:
        """Yield all modules, each model's in the order of ``named_modules``, parents before children."""
        parts: dict[int, list[ModuleEntry]] = {}
        with self._lock:
            met, roots = list(self._met), list(self._roots)
        for module in met:
            if module.root is not None:
                parts.setdefault(id(module.root), []).append(module)
        for root in roots:
            yield root
            yield from sorted(parts.get(id(root), ()), key=lambda module: module.position)

    def parameters(self) -> list[ParameterRecord]:
        """Return all parameters of all models, in the order of their modules."""
        with self._lock:
            self._parameters.read_lazy(self._lookup)
            return self._parameters.of(self.in_order())
