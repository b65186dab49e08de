"""The modules of a recording: a tree of names per model, their calls, and the module that made an autograd node.

`module_calls` reports each call here. Full names are formed when tables are made: a module that is called on its own
first may later turn out to be part of a larger model.
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
from dsexplore._internal.torch_internals.autograd import AccumulateGrad, current_node, is_in_backward, node_number
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
    """{id of a module: entry of the latest module with that id}."""
    _wrappers: dict[int, tuple[weakref.ref[nn.Module], ModuleEntry]] = field(default_factory=dict)
    """{id of a wrapper around a module: (wrapper, the module's entry)}."""
    _met: list[ModuleEntry] = field(default_factory=list)
    """All modules, in the order in which they were met."""
    _roots: list[ModuleEntry] = field(default_factory=list)
    """The outermost modules so far."""
    _parameters: ParameterRecords = field(default_factory=ParameterRecords)
    _threads: list[ThreadCalls] = field(default_factory=list)
    """The calls of all threads."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.own = OwnCalls(self._threads)
        """``own.calls`` are the module calls of the current thread."""

    def release(self) -> None:
        """Drop all references to meshes and code; entries and parameter layouts stay."""
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
        """Return the entry of a module, or of the module inside a wrapper; None if it was not met."""
        entry = self._entries.get(id(module))
        return entry if entry is not None and entry.reference() is module else self._wrapped_entry(module)

    def _wrapped_entry(self, module: nn.Module) -> ModuleEntry | None:
        """Return the entry of the module inside a wrapper; None for any other module."""
        wrapper, entry = self._wrappers.get(id(module), (None, None))
        return entry if wrapper is not None and wrapper() is module else None

    def call_of_node(self, node: Any, called_here: bool) -> ModuleCall:
        """Return the module call that made an autograd node.

        Args:
            node: the node that is running in this thread; None for none.
            called_here: whether backward is known to have been called in this thread.

        Returns:
            The call; for a node that accumulates a parameter's gradient, one of the module that holds the parameter.
            `NO_CALL` if no module made the node.
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
        """Assign the newest autograd node to a call whose begin was not observed."""
        thread_calls = self.own.calls
        if call.module is not None and thread_calls.current is not call.module:
            thread_calls.assign_last_node(call)

    def holder(self, variable: torch.Tensor) -> ModuleEntry | None:
        """Return the module that holds a parameter; None if there is none."""
        place = self.place_of(variable)
        return place[0] if place is not None else None

    def place_of(self, variable: torch.Tensor) -> tuple[ModuleEntry, str] | None:
        """Return the module that holds a parameter, and the parameter's name in it; None if there is none."""
        with self._lock:  # other threads may add modules
            entries, wrappers = list(self._entries.values()), list(self._wrappers.values())
        for reference, module in chain(((entry.reference, entry) for entry in entries), wrappers):
            alive = reference()
            if alive is not None:
                for name, parameter in own_parameters(alive).items():
                    if parameter is variable:
                        return module, name
        return None

    def enclosing(self, inner: ModuleEntry | None, test: Callable[[nn.Module], bool]) -> ModuleEntry | None:
        """Return the innermost module that passes a test and contains `inner`, or is `inner`.

        Args:
            inner: a module; None if it is unknown.
            test: returns True for the modules to choose from.

        Returns:
            The module. If none that passes contains `inner`, the only one that passes; None if none or several pass.
        """
        with self._lock:
            references = [(candidate, candidate.reference()) for candidate in self._met]
        passing = [candidate for candidate, module in references if module is not None and test(module)]
        around = [candidate for candidate in passing if inner is not None and candidate.holds(inner)]
        if around:
            return max(around, key=lambda candidate: len(candidate.path))
        return passing[0] if len(passing) == 1 else None

    def _discover(self, module: nn.Module) -> ModuleEntry:
        """Add a new module, with its model if it can be read, and return its entry."""
        with self._lock:
            try:
                return self._place(module)
            except ClosedWorldError:  # the call of the module will raise it
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
        calls = self.own.calls.open
        caller = calls[0].module if calls else None
        if caller is not None:
            root = caller.root or caller
            model = root.reference()
            if model is not None and any(inside is module for inside in model.modules()):
                self._add_tree(root, model)  # the module was added to its model after the model's first call
                return self._entries[id(module)]
        root = self._add_root(module)
        self._add_tree(root, module)
        return root

    def _add_root(self, model: nn.Module) -> ModuleEntry:
        """Add a module as the outermost one of a new model."""
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
        placed: list[tuple[nn.Module, ModuleEntry]] = []
        has_wrappers = False
        for position, (path, module) in enumerate(model.named_modules()):
            entry = self._lookup(module)
            is_wrapper = unwrapped(module) is not module
            has_wrappers = has_wrappers or is_wrapper
            if module is not model and not is_wrapper:
                if entry is None:
                    entry = self._entries[id(module)] = ModuleEntry(weakref.ref(module), class_name(module))
                    self._met.append(entry)
                elif entry in self._roots:
                    self._roots.remove(entry)  # it was called on its own before
                if entry.root not in self._roots or entry.root is root:  # else an earlier model shares it
                    entry.path = without_wrappers(path) if has_wrappers else path
                    entry.root, entry.position = root, position
            if entry is not None:
                placed.append((module, entry))
        self._parameters.read(model, placed)

    def running(self) -> ModuleEntry | None:
        """Return the module that runs in this thread; in backward, the module that made the running node in forward."""
        current = self.own.calls.current
        if current is not None or not is_in_backward():
            return current
        return self.call_of_node(current_node(), called_here=False).module

    def differentiable_calls(self) -> int:
        """Return the number of outermost calls so far, in all threads, that began with gradients enabled."""
        return sum(thread.with_gradients for thread in self._threads)

    def in_forward(self) -> bool:
        """Return True if a module's forward runs in this thread."""
        return bool(self.own.calls.open)

    def meshes(self) -> list[DeviceMesh]:
        """Return the meshes on which parameters are."""
        with self._lock:
            return self._parameters.meshes()

    def calls(self) -> dict[int, int]:
        """Return {id of an entry: number of its calls so far}."""
        with self._lock:
            return {id(module): module.calls for module in self._met}

    def in_order(self) -> Iterator[ModuleEntry]:
        """Yield all modules, each model's in the order of ``named_modules``, parents before children."""
        inner: dict[int, list[ModuleEntry]] = {}
        with self._lock:
            met, roots = list(self._met), list(self._roots)
        for module in met:
            if module.root is not None:
                inner.setdefault(id(module.root), []).append(module)
        for root in roots:
            yield root
            yield from sorted(inner.get(id(root), ()), key=lambda module: module.position)

    def parameters(self) -> list[ParameterRecord]:
        """Return all parameters of all models, in the order of their modules."""
        with self._lock:
            self._parameters.read_lazy(self._lookup)
            return self._parameters.of(self.in_order())
