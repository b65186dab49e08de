"""Which modules exist, how often each ran, and which one an autograd node belongs to.

Hooks note when a module's forward begins and ends. The forward of a collective is read off the stack
(`frames`); what hooks alone can tell is where a *backward* collective belongs: autograd numbers its nodes as the
forward creates them, so the number of the running node, looked up among the module boundaries, gives the module
whose forward made it. No tensor, no graph and no parameter is touched or kept.

Names are resolved when tables are made, not when modules are met: a model whose parts ran before the whole still
gets one tree.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import GraphModule
from torch.nn.modules.module import _global_forward_pre_hooks

from dsexplore.capture import frame_kinds
from dsexplore.capture.autograd_nodes import NOWHERE, Boundaries, Call, PerThread, of_forward, site
from dsexplore.capture.parameters import Parameter, Parameters
from dsexplore.capture.source_lines import Sources
from dsexplore.capture.uncompiled import leave_to_python
from dsexplore.models import class_name

AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined] # not in its stubs
_HOOK = -1
"""The key of our hooks, where torch counts up from 0: the same each time, so that what torch.compile compiled
with them is used again by the next recording."""
_CALL_OF_HOOK = 3
"""How many frames outside our hook the module's call stands, where nothing but torch is between them."""
_ABOUT_OUR_HOOK = r"Using `torch\.compile\(module\)` when there are global hooks"
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass(slots=True, eq=False)
class Module:
    """One module that was met; ``root`` is itself for the outermost one."""

    reference: weakref.ref[nn.Module]
    type: str
    root: Module | None = None
    path: str = ""
    """Fully qualified name below the root."""
    position: int = 0
    """Place in the root's ``named_modules``."""
    label: str = ""
    """For a root: its class, numbered where several models share it."""
    calls: int = 0

    @property
    def name(self) -> str:
        """``"Llama.layers.0.attn"``."""
        label = self.root.label if self.root is not None else self.label
        return f"{label}.{self.path}" if self.path else label


class _Hooked(weakref.ref[nn.Module]):
    """A module with our hook, which holds this reference beside it: so we are told when ``deepcopy`` copies both."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hooked | bool:
        copied, following = memo.get(id(self())), _following
        return following.hooked(copied) if copied is not None and following is not None else True

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (True,)  # torch's own value


@dataclass
class Modules:
    """The modules of one process while anything is recorded.

    Args:
        warn: tells, once, of a model that cannot be read; called with what it is about and a message.
    """

    warn: Callable[[str, str], None] = lambda _about, message: warnings.warn(message, RuntimeWarning, stacklevel=3)
    _known: dict[int, tuple[weakref.ref[nn.Module], Module]] = field(default_factory=dict)
    """By the identity of the object: of those that had the same one, the latest."""
    _met: list[Module] = field(default_factory=list)
    _roots: list[Module] = field(default_factory=list)
    _parameters: Parameters = field(default_factory=Parameters)
    _hooked: dict[int, _Hooked] = field(default_factory=dict)
    """By the identity of the hooked object."""
    _filter: Any = None
    _threads: list[Boundaries] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.here = PerThread(self._threads)
        """``here.mine``: what the hooks have told in the thread that looks."""

    def install(self) -> None:
        """Begin to follow module calls."""
        global _following
        _following = self
        for hook in (_entering, _leaving):
            leave_to_python(hook.__code__)
        _global_forward_pre_hooks[_HOOK] = _entering
        warnings.filterwarnings("ignore", message=_ABOUT_OUR_HOOK)
        self._filter = warnings.filters[0]

    def uninstall(self) -> None:
        """Remove every hook."""
        global _following
        _global_forward_pre_hooks.pop(_HOOK, None)
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined] # a list, whatever typeshed says
        with self._lock:
            _following = None
            for reference in self._hooked.values():
                hooked = reference()
                for name in ("_forward_hooks", "_forward_hooks_always_called") if hooked is not None else ():
                    getattr(hooked, name, {}).pop(_HOOK, None)  # one that is only being copied may lack them yet
            self._hooked.clear()
            self._parameters.release()

    def _hook(self, called: nn.Module) -> None:
        """Be told when its forward ends, unless the recording ended meanwhile, in another thread."""
        with self._lock:
            if _following is self:
                # The module's own last hook: what earlier hooks communicate still belongs to the module.
                called._forward_hooks[_HOOK] = _leaving
                called._forward_hooks_always_called[_HOOK] = self.hooked(called)  # type: ignore[assignment] # of any kind

    def hooked(self, module: nn.Module) -> _Hooked:
        """Remember that it has our hook."""
        with self._lock:
            reference = self._hooked[id(module)] = _Hooked(module)
            return reference

    def find(self, wanted: nn.Module) -> Module:
        """The entry of a module; one that was not met before becomes part of its model's tree."""
        return self._lookup(wanted) or self._discover(wanted)

    def _lookup(self, wanted: nn.Module) -> Module | None:
        reference, module = self._known.get(id(wanted), (None, None))
        return module if reference is not None and reference() is wanted else None

    def of_forward(self, called_here: bool) -> Boundaries:
        """Those of the thread whose forward made the autograd node that is running.

        Args:
            called_here: whether backward was called in this thread, if that is known.
        """
        boundaries = self.here.mine
        if called_here and boundaries.numbers:
            return boundaries
        return of_forward(self._threads, boundaries, () if called_here else frame_kinds.threads_in_engine())

    def maker(self, node: Any, called_here: bool) -> tuple[Module | None, Boundaries | None]:
        """Who made that autograd node, which is running: the module that holds the parameter whose gradient it
        accumulates; or the boundaries among which its number tells the module. Neither for no node.

        Args:
            node: of autograd.
            called_here: whether backward was called in this thread, if that is known.
        """
        if node is None:
            return None, None
        if isinstance(node, AccumulateGrad):
            return self.holder(node.variable), None
        return None, self.of_forward(called_here)

    def of_node(self, node: Any) -> tuple[Module | None, Sources]:
        """The module whose forward made that autograd node, which is running, and what called it."""
        module, boundaries = self.maker(node, called_here=False)
        if boundaries is None:
            return module, ()
        call = boundaries.at(node._sequence_nr())
        return call[0], site(call)

    def note_node(self, module: Module | None, called: Sources) -> None:
        """The autograd node made last belongs to that module, called there: for one that no hook sees the call of."""
        boundaries = self.here.mine
        if module is not None and boundaries.top is not module:
            code, offset = called[0] if called else (None, 0)
            boundaries.note((module, 0, 0, code, offset))

    def answer(self) -> None:
        """Tell all collectives of backward which module's forward made the node that issued them."""
        for boundaries in list(self._threads):  # other threads begin meanwhile
            boundaries.answer()

    def holder(self, variable: torch.Tensor) -> Module | None:
        """The module that has this very parameter."""
        for reference, module in self._entries():
            alive = reference()
            if alive is not None and any(own is variable for own in alive._parameters.values()):
                return module
        return None

    def wrapper(self, kind: type[nn.Module]) -> Module | None:
        """The only root of that type, such as the one DistributedDataParallel; None for none or several."""
        found = [root for root in self._roots if isinstance(root.reference(), kind)]
        return found[0] if len(found) == 1 else None

    def _discover(self, wanted: nn.Module) -> Module:
        with self._lock:
            try:
                return self._place(wanted)
            except Exception as fault:
                kind = class_name(wanted)
                self.warn(
                    kind, f"dsexplore could not read all of the model around {kind}, whose call goes on: {fault!r}"
                )
                return self._lookup(wanted) or self._add_root(wanted)

    def _place(self, wanted: nn.Module) -> Module:
        inner = _unwrapped(wanted)
        if inner is not wanted:
            module = self.find(inner)
            self._known[id(wanted)] = weakref.ref(wanted), module
            return module
        for caller, *_ in self.here.mine.stack[:1]:
            root = caller.root or caller
            model = root.reference()
            if model is not None and any(part is wanted for part in model.modules()):
                self._add_tree(root, model)  # it was added to the model after its first call
                return self._known[id(wanted)][1]
        root = self._add_root(wanted)
        self._add_tree(root, wanted)
        return root

    def _add_root(self, model: nn.Module) -> Module:
        root = Module(weakref.ref(model), class_name(model) or "Module")
        root.label = self._free_label(root.type)
        self._known[id(model)] = root.reference, root
        self._met.append(root)
        self._roots.append(root)
        return root

    def _free_label(self, wanted: str) -> str:
        taken = {root.label for root in self._roots}
        label, number = wanted, 1
        while label in taken:
            number += 1
            label = f"{wanted}#{number}"
        return label

    def _add_tree(self, root: Module, model: nn.Module) -> None:
        parts = []
        for position, (path, part) in enumerate(model.named_modules()):
            module = self._lookup(part)
            if part is not model and _unwrapped(part) is part:
                if module is None:
                    module = Module(weakref.ref(part), class_name(part))
                    self._known[id(part)] = module.reference, module
                    self._met.append(module)
                elif module in self._roots:
                    self._roots.remove(module)  # it ran on its own before, and is part of a larger model
                if module.root not in self._roots or module.root is root:  # else shared with a model met before
                    module.root, module.path, module.position = root, _clean(path), position
            if module is not None:
                parts.append((part, module))
        self._parameters.read(model, parts)

    def running(self) -> Module | None:
        """The module whose forward runs in this thread; in backward, the one whose forward made the running node."""
        if self.here.mine.top is not None:
            return self.here.mine.top
        if torch._C._current_graph_task_id() == -1:
            return None
        return self.of_node(torch._C._current_autograd_node())[0]

    def in_forward(self) -> bool:
        """Whether a module's forward runs in this thread."""
        return bool(self.here.mine.stack)

    def meshes(self) -> list[DeviceMesh]:
        """Meshes that parameters lie on."""
        with self._lock:
            return self._parameters.meshes()

    def _entries(self) -> list[tuple[weakref.ref[nn.Module], Module]]:
        """All that is known as of now: other threads go on meeting modules."""
        with self._lock:
            return list(self._known.values())

    def calls(self) -> dict[int, int]:
        """Calls so far, by identity of the entry."""
        with self._lock:
            return {id(module): module.calls for module in self._met}

    def in_order(self) -> Iterator[Module]:
        """All modules, each model's in the order of ``named_modules``, parents before children."""
        parts: dict[int, list[Module]] = {}
        with self._lock:
            met, roots = list(self._met), list(self._roots)
        for module in met:
            if module.root is not None:
                parts.setdefault(id(module.root), []).append(module)
        for root in roots:
            yield root
            yield from sorted(parts.get(id(root), ()), key=lambda module: module.position)

    def parameters(self) -> list[Parameter]:
        """All parameters of all models met, in the order of their modules."""
        with self._lock:
            self._parameters.read_lazy(self._lookup)
            return self._parameters.of(self.in_order())


_following: Modules | None = None


# The next two run for each call of each module, after computations that have emptied the processor's caches: there each
# further function costs about a microsecond. So what could be methods of `Modules` and `Boundaries` is written out.


def _entering(called: nn.Module, _inputs: Any) -> None:
    """A forward begins."""
    # Inside a compiled region hooks are replayed out of order: there a collective belongs to the compiled module.
    if is_dynamo_compiling():
        return
    following = _following
    if following is None or (isinstance(called, GraphModule) and frame_kinds.inside_compiled()):
        return  # no longer recorded; or a compiled module's own graph
    identity = id(called)
    known = following._known.get(identity)
    module = known[1] if known is not None and known[0]() is called else following._discover(called)
    if _HOOK not in called._forward_hooks:
        following._hook(called)
    boundaries = following.here.mine
    stack = boundaries.stack
    if module.root is None and stack:
        # torch calls no hook on KeyboardInterrupt: a call that somebody caught it from is over.
        del stack[frame_kinds.calls_in_progress() - 1 :]
    if not stack or stack[-1][0] is not module or stack[-1][1] == identity:
        module.calls += 1
    try:
        outer = sys._getframe(_CALL_OF_HOOK)
    except ValueError:  # not so many frames
        outer = sys._getframe()
    user = outer.f_back
    kinds = frame_kinds.kinds
    if (
        user is not None
        and kinds.get(id(outer.f_code)) == frame_kinds.OUTER_CALL
        and kinds.get(id(user.f_code)) == frame_kinds.USER
    ):
        call: Call = (module, identity, id(outer), user.f_code, user.f_lasti)
    else:
        call = (module, identity, *frame_kinds.call_around(sys._getframe()))
    stack.append(call)
    boundaries.numbers.append(_get_sequence_nr())
    boundaries.calls.append(call)


def _leaving(called: nn.Module, _inputs: Any, _output: Any) -> None:
    """A forward ended, with or without an exception."""
    if is_dynamo_compiling():
        return
    following = _following
    if following is None:
        return
    boundaries = following.here.mine
    stack = boundaries.stack
    if stack and stack[-1][1] == id(called):
        del stack[-1]
    else:
        boundaries.unwind(id(called))
    if not stack:
        boundaries.trim()
    boundaries.numbers.append(_get_sequence_nr())
    boundaries.calls.append(stack[-1] if stack else NOWHERE)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's or checkpointing's wrapper, which are no part of its names."""
    for name in _WRAPPERS:
        inner = model._modules[name] if name in model._modules else None  # noqa: SIM401 # a script module's has no get
        if inner is not None:
            return _unwrapped(inner)
    return model


def _clean(path: str) -> str:
    if not any(wrapper in path for wrapper in _WRAPPERS):
        return path
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)
