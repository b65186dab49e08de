"""An import hook that finds stand-ins for missing GPU extensions while a simulated world of GPUs is open."""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import did_you_mean
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patches
from dsexplore._internal.user_code import is_user_file
from dsexplore._internal.worlds.extensions.needed_imports import importer_of, is_needed
from dsexplore._internal.worlds.extensions.registry import Names, names_of, registered_package
from dsexplore._internal.worlds.remarks import Remarks

_ASK_A_DRIVER = ("pynvml",)
"""Packages that describe the GPUs of this machine: replaced even if installed, to describe the simulated ones."""


class MissingNameError(UsageError, ImportError):
    """A program imports a name that the stand-in for a package lacks."""


class _StandInModule(ModuleType):
    """A stand-in module of a package that is not installed."""

    _package: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        text = _missing_text(self._package, f"{self.__name__}.{name}")
        if _is_from_import(sys._getframe(1)):
            raise MissingNameError(text)
        raise AttributeError(text)


def _is_from_import(frame: FrameType) -> bool:
    """Return True if a frame executes ``from module import name``."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def _missing_text(package: str, name: str) -> str:
    """Return the message for a name that the stand-in for a package lacks; `name` begins with the package."""
    within = name[len(package) + 1 :]
    suggestion = did_you_mean(within, names_of(package))
    return (
        f"{package} is not installed, and its stand-in has no {within}{suggestion}: add it with "
        f"dsexplore.register_extension({package!r}, lambda: {{{within!r}: your_function}}) before the run"
    )


class _StandInFinder(MetaPathFinder):
    """Finds stand-ins of registered packages; the last entry of ``sys.meta_path``.

    Args:
        remarks: gets a remark on each package that was replaced.
    """

    def __init__(self, remarks: Remarks) -> None:
        self._remarks = remarks
        self._names: dict[str, Names] = {}
        self._hidden = {name for name in _ASK_A_DRIVER if importlib.util.find_spec(name) is not None}
        self.modules: list[str] = []
        """Names of the stand-in modules that were created."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a stand-in module that a program needs, or None.

        Raises:
            MissingNameError: the stand-in for its package has no such module.
        """
        package = registered_package(fullname)
        if package is None:
            return None
        if fullname != package:
            if not isinstance(sys.modules.get(fullname.rpartition(".")[0]), _StandInModule):
                return None  # the package is installed and has no such module
            if not self._is_module(package, fullname):
                raise MissingNameError(_missing_text(package, fullname))
        elif package not in self._hidden and not is_needed(sys._getframe(1)):
            self._note_alternative(package)
            return None
        return ModuleSpec(fullname, _Loader(self, package), is_package=True)

    def _is_module(self, package: str, module: str) -> bool:
        """Return True if the stand-in for a package has names in a module."""
        within = module[len(package) + 1 :] + "."
        return any(name.startswith(within) for name in self.names(package))

    def _note_alternative(self, package: str) -> None:
        """Add a note that the program does without a package, if its own code, not a library, asks for it."""
        importer = importer_of(sys._getframe(2))
        if importer is not None and is_user_file(importer.f_code.co_filename):
            self._remarks.note(f"{package} is not installed: the program took its own alternative")

    def names(self, package: str) -> Names:
        """Return {name: stand-in} of a package; the first call adds a remark."""
        if package not in self._names:
            self._names[package] = names_of(package)
            if package in _ASK_A_DRIVER:
                self._remarks.note(f"{package} answers as the simulated GPUs")
            else:
                self._remarks.note(f"{package} is not installed: a stand-in with the same shapes ran")
        return self._names[package]

    def install(self) -> None:
        """Add the finder to ``sys.meta_path``: last, and also first for installed packages that it hides."""
        self._hidden_modules = {name: sys.modules.pop(name) for name in self._hidden if name in sys.modules}
        sys.meta_path.append(self)
        if self._hidden:
            sys.meta_path.insert(0, _Hiding(self, self._hidden))

    def uninstall(self) -> None:
        """Remove the finder and all stand-ins from `sys`."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "stand_ins", finder) is not self]
        for name in self.modules:
            sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(child, None)
        sys.modules.update(self._hidden_modules)


class _Hiding(MetaPathFinder):
    """Finds stand-ins for installed packages; it comes before Python's own finders.

    Args:
        stand_ins: the finder of stand-ins.
        packages: names of the packages to hide.
    """

    def __init__(self, stand_ins: _StandInFinder, packages: set[str]) -> None:
        self.stand_ins, self._packages = stand_ins, packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the stand-in for one of the packages; None for any other module."""
        return self.stand_ins.find_spec(fullname, path, target) if fullname in self._packages else None


class _Loader(Loader):
    """Creates the stand-in modules of a package."""

    def __init__(self, finder: _StandInFinder, package: str) -> None:
        self._finder, self._package = finder, package

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module whose errors name missing attributes."""
        module = _StandInModule(spec.name, f"Stand-in for {spec.name}, which is not installed.")
        module._package = self._package
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Set the stand-ins of the module, and import its submodules."""
        self._finder.modules.append(module.__name__)
        module.__path__ = []
        prefix = f"{module.__name__}."[len(self._package) + 1 :]
        children: dict[str, None] = {}
        for name, value in self._finder.names(self._package).items():
            if name.startswith(prefix):
                first, *rest = name[len(prefix) :].split(".")
                if rest:
                    children[first] = None
                else:
                    setattr(module, first, value)
        for child in children:
            import_module(f"{module.__name__}.{child}")


def _find_stand_ins(patches: Patches, parts: Parts) -> None:
    """Add the finder of stand-ins to the import system until the end of the block."""
    finder = _StandInFinder(parts[Remarks])
    finder.install()
    patches.callback(finder.uninstall)


PATCHES: tuple[Entry, ...] = (
    Change(
        "the import of GPU extensions",
        "programs import them at the top, and they cannot be installed without a GPU",
        _find_stand_ins,
        "cuda traffic",
    ),
)
