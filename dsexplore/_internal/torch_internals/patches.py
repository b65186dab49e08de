"""Replacements of functions of torch: `Patch`, `Kernel` and `Change` say what, when and why; `Patches` undoes them.

A world walks over a table of such entries. Each is a fact that can be read, listed and checked: which name of torch
(`TorchName`, with the versions that have it), when it is replaced, why, and the function that makes what replaces it.

`Patches.attribute` replaces what an object holds under a name. A function which a user imported by name
(``from torch.distributed import init_process_group``) before the world was opened is not reached so;
`Patches.function` does: it exchanges the function's code, so every reference to it follows.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, Protocol, TypeVar, cast

import torch

from dsexplore._internal.torch_internals.dispatch import has_kernel_for, has_op
from dsexplore._internal.torch_internals.names import TorchName, is_there, lacking


class HasCallback(Protocol):
    """Whatever calls functions when it is undone or left."""

    def callback(self, function: Callable[..., object], /, *args: object) -> object:
        """Call that function with those arguments when this is undone or left."""


class _Finder(MetaPathFinder):
    """Changes one module as soon as it is imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], object]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader makes the change."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ChangingLoader(spec.loader, self._change)
                return spec
        return None


class _ChangingLoader(Loader):
    def __init__(self, loader: Loader, change: Callable[[ModuleType], object]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module with its own loader, then change it."""
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)


def on_import(undone: HasCallback, name: str, change: Callable[[ModuleType], object]) -> None:
    """Change a module now if it is imported already, else as soon as it is.

    Args:
        undone: gets the call that stops waiting for the import (`Patches`, `contextlib.ExitStack`).
        name: the module's dotted name.
        change: called with the module once it has been executed.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    finder = _Finder(name, change)
    sys.meta_path.insert(0, finder)
    undone.callback(sys.meta_path.remove, finder)


T = TypeVar("T")
When = Literal["always", "fake", "cuda traffic", "cuda device"]
"""When an entry is installed: in each simulated world; in those with fake tensors; in those that show the traffic of
GPUs; in those where a CPU stands in for GPUs."""

_replacements: dict[str, Callable[..., Any]] = {}


class Patches:
    """A set of changes; `undo` takes all of them back, whatever happens in between."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to a value; an attribute that was only inherited is removed again."""
        missing = object()
        original = vars(owner).get(name, missing)
        setattr(owner, name, value)
        if original is missing:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, original)

    def inherited(self, owner: type, name: str) -> None:
        """Replace a class attribute by the one that its base classes have."""
        original = vars(owner)[name]
        delattr(owner, name)
        self._stack.callback(setattr, owner, name, original)

    def item(self, mapping: dict[str, Any], key: str, value: Any) -> None:
        """Set ``mapping[key]`` of a key that is there already."""
        self._stack.callback(mapping.__setitem__, key, mapping[key])
        mapping[key] = value

    def function(self, function: Callable[..., Any], build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Make every reference to a function call ``build(original)`` instead.

        Args:
            function: a Python function, decorated with `functools.wraps` or plain.
            build: gets a callable that does what the function did, and returns what it shall do now.
        """
        inner = inspect.unwrap(function, stop=_is_replaced)
        assert isinstance(inner, FunctionType), f"{function} is not a Python function"
        assert not _is_replaced(inner), f"{inner.__qualname__} is replaced already"
        assert not inner.__code__.co_freevars, f"{inner.__qualname__} closes over variables"
        key = f"{inner.__module__}.{inner.__qualname__}"
        original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
        original.__kwdefaults__ = inner.__kwdefaults__
        original.__annotations__ = inner.__annotations__
        _replacements[key] = build(original)
        self._stack.callback(_restore, inner, original, key)
        # Defaults belong to the old signature: they must be gone before the new code can be called.
        inner.__defaults__ = inner.__kwdefaults__ = None
        inner.__code__ = _jump_to(key).__code__
        # Where `inspect` finds source and signature, of which TorchScript compiles what a program imports meanwhile.
        inner.__wrapped__ = original  # type: ignore[attr-defined] # functions have any attribute

    def callback(self, function: Callable[..., Any], *args: Any) -> None:
        """Call that when the changes are undone."""
        self._stack.callback(function, *args)

    def undo(self) -> None:
        """Take everything back; a second call does nothing."""
        self._stack.close()


def _jump_to(key: str) -> FunctionType:
    """Return a function without free variables that hands its arguments on to the replacement of that name."""
    scope: dict[str, Any] = {}
    exec(
        f"def jump(*args, **kwargs):\n"
        f"    from {__name__} import _replacements\n"
        f"    return _replacements[{key!r}](*args, **kwargs)\n",
        scope,
    )
    jump = scope["jump"]
    assert isinstance(jump, FunctionType)
    return jump


def _is_replaced(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and is_jump(code)


def is_jump(code: CodeType) -> bool:
    """Return True for the code that `Patches.function` gives a function, to call what replaces it."""
    return (code.co_filename, code.co_name) == ("<string>", "jump")


def _restore(function: FunctionType, original: FunctionType, key: str) -> None:
    function.__code__ = original.__code__
    function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    vars(function).pop("__wrapped__", None)  # Ctrl-C may have come before it was set
    _replacements.pop(key, None)


class Parts:
    """What the functions of a table share while a world is open, by type or base class; what is not there yet is made.

    Example:
        >>> parts = Parts()
        >>> parts[list] is parts[list]
        True
    """

    def __init__(self, *parts: object) -> None:
        self._parts: dict[type, object] = {type(part): part for part in parts}

    def __getitem__(self, kind: type[T]) -> T:
        if kind not in self._parts:
            derived = [part for part in self._parts.values() if isinstance(part, kind)]
            self._parts[kind] = derived[0] if derived else kind()
        return cast("T", self._parts[kind])

    def add(self, part: object) -> None:
        """Register an object under its type."""
        self._parts[type(part)] = part


@dataclass(frozen=True)
class Patch:
    """One name of torch, or of a package on torch, that is replaced while a world is open.

    Attributes:
        target: the name; where its module is not torch's, it is replaced as soon as a program imports that module.
        why: what would go wrong without the replacement, as half a sentence: ``"it reads its rank table"``.
        make: ``(original, parts) -> replacement``.
        when: the worlds in which it is replaced.
        by_code: exchange the code of a Python function, so that references which a program imported by name follow,
            rather than set the attribute.
        on_import: wait until a program imports the module, also where it is torch's own, as those that load slowly.
        needed_for: what cannot be had without the replacement, as the user asks for it (``"fake=True"``): where a
            version that should have the name does not, that is refused; None where the entry is omitted.
    """

    target: TorchName
    why: str
    make: Callable[[Any, Parts], Any]
    when: When = "always"
    by_code: bool = False
    on_import: bool = False
    needed_for: str | None = None

    def install(self, patches: Patches, parts: Parts) -> str | None:
        """Replace the name until `patches` are undone.

        Returns:
            A sentence on what was omitted, where the installed torch should have the name and does not; else None.

        Raises:
            UsageError: the same, and something that was asked for cannot be had without it.
        """
        if self.on_import or not self.target.is_torchs:
            on_import(patches, self.target.module, lambda module: self._replace(patches, parts))
            return None
        return self._replace(patches, parts)

    def _replace(self, patches: Patches, parts: Parts) -> str | None:
        original = self.target.get()
        if not is_there(original):
            return self._left_out()
        if self.by_code:
            patches.function(original, lambda kept: self.make(kept, parts))
        else:
            patches.attribute(self.target.owner(), self.target.attribute, self.make(original, parts))
        return None

    def _left_out(self) -> str | None:
        if not self.target.is_torchs or not self.target.is_expected:
            return None
        if self.needed_for is not None:
            raise lacking(self.target.path, self.needed_for)
        name = self.target.path.replace(":", ".")
        return f"torch {torch.__version__} has no {name}, which is replaced here as {self.why}: look at that with care"


@dataclass(frozen=True)
class Kernel:
    """A kernel that an op of torch gets for one dispatch key while a world is open.

    Attributes:
        op: the op, ``"c10d::allreduce_coalesced_"``.
        key: the dispatch key, ``"Meta"``.
        why: why torch's own answer does not do.
        make: ``(parts) -> kernel``.
        when: the worlds in which it is there.
        only_if_missing: leave a kernel alone that torch has for this key.
    """

    op: str
    key: str
    why: str
    make: Callable[[Parts], Callable[..., Any]]
    when: When = "always"
    only_if_missing: bool = False

    def install(self, patches: Patches, parts: Parts) -> str | None:
        """Register the kernel until `patches` are undone; an op that the installed torch lacks is omitted."""
        if not has_op(self.op):
            return None
        namespace, _, name = self.op.partition("::")
        if self.only_if_missing and has_kernel_for(self.op, self.key):
            return None
        library = torch.library.Library(namespace, "IMPL")
        patches.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")  # that a kernel is overridden
            library.impl(name, self.make(parts), self.key, allow_override=not self.only_if_missing)
        return None


@dataclass(frozen=True)
class Change:
    """Something else that is set up with a world and taken back with it: a mode, a registry, a setting.

    Attributes:
        what: what is changed, in a few words.
        why: why.
        run: ``(patches, parts)``; gives `patches` the calls that take the change back.
        when: the worlds in which it is made.
    """

    what: str
    why: str
    run: Callable[[Patches, Parts], None]
    when: When = "always"

    def install(self, patches: Patches, parts: Parts) -> str | None:
        """Make the change until `patches` are undone."""
        self.run(patches, parts)
        return None


Entry = Patch | Kernel | Change


def install_all(table: Iterable[Entry], when: set[When], patches: Patches, parts: Parts) -> list[str]:
    """Install all entries of a table that hold in a world, in their order.

    Args:
        table: the entries.
        when: the conditions that the world meets.
        patches: takes everything back.
        parts: what the entries share.

    Returns:
        A sentence for each entry that the installed torch made us omit, and that it was expected to have.

    Raises:
        UsageError: something that was asked for cannot be had on the installed torch.
    """
    said = [entry.install(patches, parts) for entry in table if entry.when in when]
    return [sentence for sentence in said if sentence is not None]
