"""`on_import`: change a module that a program may import later, as soon as it does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Protocol


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
        """The module's own spec, whose loader makes the change."""
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
        """Whatever the module's own loader creates."""
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
