"""Replace functions of torch while a world is open: `Patch`, `Kernel` and `Change` describe it, `Patches` undoes it.

A world installs a table of such entries. Each entry says which name of torch is replaced (`TorchName`, with the
versions that have it), when and why, and has the function that makes the replacement, so that tables can be listed and
checked.

`Patches.attribute` replaces an attribute of an object. It does not reach a function that a user imported by name
(``from torch.distributed import init_process_group``) before the world was opened. `Patches.function` does: it
exchanges the function's code, so that every reference to the function calls the replacement.
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
    """An object that calls registered functions when it is undone or left: `Patches`, `contextlib.ExitStack`."""

    def callback(self, function: Callable[..., object], /, *args: object) -> object:
        """Register a call of a function with these arguments."""


class _Finder(MetaPathFinder):
    """Import hook that changes one module when it is imported."""

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
    """Loader that changes a module after its own loader has executed it."""

    def __init__(self, loader: Loader, change: Callable[[ModuleType], object]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, then change it."""
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)


def on_import(undone: HasCallback, name: str, change: Callable[[ModuleType], object]) -> None:
    """Change a module now if it is already imported, else when it is.

    Args:
        undone: object with which a call is registered that stops waiting for the import.
        name: dotted name of the module.
        change: function that is called with the module after it was executed.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    finder = _Finder(name, change)
    sys.meta_path.insert(0, finder)
    undone.callback(sys.meta_path.remove, finder)


T = TypeVar("T")
When = Literal["always", "fake", "cuda traffic", "cuda device"]
"""Worlds in which an entry is installed: all simulated ones; those with fake tensors; those that show the traffic of
GPUs; those in which a CPU stands in for GPUs."""

_replacements: dict[str, Callable[..., Any]] = {}
"""{qualified name of a function: the function that replaces it}."""


class Patches:
    """A set of changes, which `undo` reverts."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to a value; undoing it removes an attribute that was only inherited before."""
        missing = object()
        original = vars(owner).get(name, missing)
        setattr(owner, name, value)
        if original is missing:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, original)

    def inherited(self, owner: type, name: str) -> None:
        """Remove an attribute of a class, so that it has the one of its base classes."""
        original = vars(owner)[name]
        delattr(owner, name)
        self._stack.callback(setattr, owner, name, original)

    def item(self, mapping: dict[str, Any], key: str, value: Any) -> None:
        """Set ``mapping[key]`` of an existing key."""
        self._stack.callback(mapping.__setitem__, key, mapping[key])
        mapping[key] = value

    def function(self, function: Callable[..., Any], build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Make every reference to a function call ``build(original)`` instead.

        Args:
            function: Python function without free variables, which may be decorated with `functools.wraps`.
            build: function that takes the original function and returns the replacement.
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
        # Defaults belong to the old signature, so they are removed before the new code can be called.
        inner.__defaults__ = inner.__kwdefaults__ = None
        inner.__code__ = _jump_to(key).__code__
        # `inspect` finds source and signature there; TorchScript needs them to compile what a program imports now.
        inner.__wrapped__ = original  # type: ignore[attr-defined] # functions have any attribute

    def callback(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function with these arguments when the changes are undone."""
        self._stack.callback(function, *args)

    def undo(self) -> None:
        """Revert all changes, the last one first; a second call does nothing."""
        self._stack.close()


def _jump_to(key: str) -> FunctionType:
    """Return a function without free variables that calls the replacement under that key."""
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
    """Return True for a function whose code `Patches.function` has exchanged."""
    code = getattr(function, "__code__", None)
    return code is not None and is_jump(code)


def is_jump(code: CodeType) -> bool:
    """Return True for the code that `Patches.function` gives a function, which calls the replacement."""
    return (code.co_filename, code.co_name) == ("<string>", "jump")


def _restore(function: FunctionType, original: FunctionType, key: str) -> None:
    """Give a function its original code and defaults again."""
    function.__code__ = original.__code__
    function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    vars(function).pop("__wrapped__", None)  # Ctrl-C may have come before it was set
    _replacements.pop(key, None)


class Parts:
    """Objects that the entries of a table share while a world is open, by type or base class.

    An object that does not exist yet is made at its first lookup, without arguments.

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
        target: Name that is replaced; if its module is not torch's, when a program imports the module.
        why: Reason for the replacement, as half a sentence: ``"it reads its rank table"``.
        make: Function ``(original, parts) -> replacement``.
        when: Worlds in which the name is replaced.
        by_code: Whether to exchange the code of a Python function, and not the attribute, so that references which a
            program imported by name call the replacement too.
        on_import: Whether to wait until a program imports the module although it is torch's, because it loads slowly.
        needed_for: Ability that needs the replacement, as the user asks for it: ``"fake=True"``. If the installed
            torch should have the name and does not, an error refuses the ability. None to omit the entry then.
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
            A sentence if the installed torch should have the name and does not; else None.

        Raises:
            UsageError: the installed torch should have the name and does not, and `needed_for` names an ability.
        """
        if self.on_import or not self.target.is_of_torch:
            on_import(patches, self.target.module, lambda module: self._replace(patches, parts))
            return None
        return self._replace(patches, parts)

    def _replace(self, patches: Patches, parts: Parts) -> str | None:
        original = self.target.get()
        if not is_there(original):
            return self._note_missing()
        if self.by_code:
            patches.function(original, lambda function: self.make(function, parts))
        else:
            patches.attribute(self.target.owner(), self.target.attribute, self.make(original, parts))
        return None

    def _note_missing(self) -> str | None:
        """Return the sentence on a missing name, or None if it is not expected; raise if it is needed."""
        if not self.target.is_of_torch or not self.target.is_expected:
            return None
        if self.needed_for is not None:
            raise lacking(self.target.path, self.needed_for)
        name = self.target.path.replace(":", ".")
        return (
            f"torch {torch.__version__} has no {name}, which dsexplore replaces because {self.why}: check results that "
            "depend on it"
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel that is registered for one op and dispatch key while a world is open.

    Attributes:
        op: Name of the op, ``"c10d::allreduce_coalesced_"``.
        key: Name of the dispatch key, ``"Meta"``.
        why: Reason why torch's own kernel is not enough, as half a sentence.
        make: Function ``(parts) -> kernel``.
        when: Worlds in which the kernel is registered.
        only_if_missing: Whether a kernel that torch has for this key is left as it is.
    """

    op: str
    key: str
    why: str
    make: Callable[[Parts], Callable[..., Any]]
    when: When = "always"
    only_if_missing: bool = False

    def install(self, patches: Patches, parts: Parts) -> str | None:
        """Register the kernel until `patches` are undone, unless the installed torch lacks the op; return None."""
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
    """Another change that lasts while a world is open: a mode, a registry, a setting.

    Attributes:
        what: Description of the change in a few words.
        why: Reason for the change.
        run: Function ``(patches, parts)`` that makes the change, and registers the calls that revert it with `patches`.
        when: Worlds in which the change is made.
    """

    what: str
    why: str
    run: Callable[[Patches, Parts], None]
    when: When = "always"

    def install(self, patches: Patches, parts: Parts) -> str | None:
        """Make the change until `patches` are undone; return None."""
        self.run(patches, parts)
        return None


Entry = Patch | Kernel | Change


def install_all(table: Iterable[Entry], when: set[When], patches: Patches, parts: Parts) -> list[str]:
    """Install the entries of a table that belong to a world, in their order.

    Args:
        table: entries of the table.
        when: kinds of worlds that the world belongs to.
        patches: set of changes, which reverts them.
        parts: objects that the entries share.

    Returns:
        A sentence for each entry that was omitted because the installed torch lacks a name that it should have.

    Raises:
        UsageError: the installed torch lacks a name that an ability of the world needs.
    """
    sentences = [entry.install(patches, parts) for entry in table if entry.when in when]
    return [sentence for sentence in sentences if sentence is not None]
