"""Replace the functions of ``deepspeed.comm`` by this package's, for a job that is written for DeepSpeed.

`install` replaces them immediately, or as soon as DeepSpeed is imported; `uninstall` restores them.

Requirements:

1. Every reference is replaced: DeepSpeed's engine refers to the module ``deepspeed.comm`` as ``dist``, other modules to
   single functions (``from deepspeed.comm import all_reduce``).
2. DeepSpeed may be imported before or after `install`.
3. `uninstall` leaves no reference behind, not even in modules that were imported meanwhile. What a program imported
   from ``dsexplore.comm`` itself stays. So each replacement is a copy that nothing else refers to.

DeepSpeed's classes (``ReduceOp``, ``ProcessGroup``, its backends) stay; the calls here accept its reductions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import torch.distributed as td

from dsexplore._internal.comm import (
    calls,
    coalesce,
    custom,
    deepspeed_names,
    discovery,
    launch,
    objects,
    p2p,
    ranks,
    switches,
    versions,
)
from dsexplore._internal.comm.logs import logger
from dsexplore._internal.comm.logs.issuing_layer import DEEPSPEED
from dsexplore._internal.torch_internals.process_groups import DEEPSPEEDS_RELEASE

_OUR_MODULES = (
    calls,
    coalesce,
    custom,
    deepspeed_names,
    discovery,
    launch,
    logger,
    objects,
    p2p,
    ranks,
    switches,
    versions,
)
"""Modules with this package's functions."""
_DEEPSPEEDS_MODULES = tuple(f"{DEEPSPEED}.{name}" for name in ("comm", "torch", "utils"))
"""Names of the modules with DeepSpeed's functions."""
_CLASSES = ("P2POp", "Noop")
"""Classes that are replaced in addition to functions."""
_LOGGER = "comms_logger"


class Installed(AbstractContextManager["Installed"]):
    """The replacement of DeepSpeed's functions, until the end of a ``with`` block or `uninstall`."""

    def __init__(self) -> None:
        self._originals: dict[int, tuple[Any, Any]] = {}
        """{id of the replacement: (replacement, DeepSpeed's function or class)}."""
        self._loggers: list[tuple[ModuleType, Any]] = []
        """DeepSpeed's modules with a logger, and that logger. This package's logger is not copied, so its references
        cannot be found by identity."""
        self._finder = _WhenImported(self._replace_functions)

    def open(self) -> None:
        """Replace DeepSpeed's functions now, or when they are imported."""
        if DEEPSPEED in sys.modules:
            self._replace_functions()
        else:
            sys.meta_path.insert(0, self._finder)

    def close(self) -> None:
        """Restore DeepSpeed's functions wherever they were replaced."""
        self._remove_finder()
        for module, original in self._loggers:
            setattr(module, _LOGGER, original)
        _replace_everywhere(self._originals)
        self._originals, self._loggers = {}, []

    def __exit__(self, *_: object) -> None:
        uninstall()

    def _replace_functions(self) -> None:
        self._remove_finder()
        for module in _imported(DEEPSPEED, *_DEEPSPEEDS_MODULES):
            if hasattr(module, _LOGGER):
                self._loggers.append((module, getattr(module, _LOGGER)))
                setattr(module, _LOGGER, logger.comms_logger)
        replacements = {id(original): (original, _copy(ours)) for original, ours in _counterparts()}
        self._originals = {id(copied): (copied, original) for original, copied in replacements.values()}
        _replace_everywhere(replacements)

    def _remove_finder(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)


_installed: Installed | None = None


def install() -> Installed:
    """Replace ``deepspeed.comm`` by this package, so that its log, switches and errors serve a DeepSpeed job.

    Call it before ``deepspeed.initialize`` or ``deepspeed.init_distributed``; DeepSpeed may be imported before or
    afterwards. A second call changes nothing.

    Returns:
        A context manager that restores DeepSpeed's functions at the end of its block, as `uninstall` does.
    """
    global _installed
    if _installed is None:
        _installed = Installed()
        _installed.open()
    return _installed


def uninstall() -> None:
    """Undo `install`; without effect if nothing is installed."""
    global _installed
    if _installed is not None:
        _installed.close()
        _installed = None
        _adopt_world()


def _adopt_world() -> None:
    """Initialize DeepSpeed's own backend with a world that was initialized through this package."""
    deepspeeds = sys.modules.get(_DEEPSPEEDS_MODULES[0])
    if deepspeeds is not None and deepspeeds.cdb is None and td.is_initialized():
        deepspeeds.init_distributed(dist_backend=td.get_backend(), verbose=False)


def _counterparts() -> Iterator[tuple[Any, Any]]:
    """Yield (DeepSpeed's function or class, this package's of the same name)."""
    ours: dict[str, Any] = {}
    for module in _OUR_MODULES:
        for name, member in vars(module).items():
            if not name.startswith("_") and (name in _CLASSES or _is_function_of_ours(member)):
                ours[name] = member
    ours["destroy_process_group"] = _destroy_process_group
    for module in _imported(*_DEEPSPEEDS_MODULES):
        for name, member in vars(module).items():
            if name in ours and (name in _CLASSES or _is_function_of(member, DEEPSPEED)):
                yield member, ours[name]


def _imported(*names: str) -> list[ModuleType]:
    """Return the modules of these names that this process has imported."""
    return [sys.modules[name] for name in names if name in sys.modules]


def _is_function_of_ours(member: Any) -> bool:
    return isinstance(member, p2p.SendOrReceive) or _is_function_of(member, __package__)


def _is_function_of(member: Any, package: str) -> bool:
    return isinstance(member, FunctionType) and f"{member.__module__}.".startswith(f"{package}.")


def _copy(ours: Any) -> Any:
    """Return a copy that behaves like the original; a function is copied, not wrapped, so that a call costs no more."""
    if isinstance(ours, FunctionType):
        function = FunctionType(ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__)
        return functools.update_wrapper(function, ours, ("__kwdefaults__", *functools.WRAPPER_ASSIGNMENTS))
    if isinstance(ours, type):
        return type(ours.__name__, (ours,), {"__doc__": ours.__doc__})
    return copy(ours)


def _replace_everywhere(replacements: dict[int, tuple[Any, Any]]) -> None:
    """Replace objects in every module of the process.

    Args:
        replacements: {id of the object to replace: (that object, its replacement)}.
    """
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(module, ModuleType) and isinstance(names, dict):
            for name, member in list(names.items()):
                original, replacement = replacements.get(id(member), (None, None))
                if original is member and replacement is not None:
                    names[name] = replacement


@functools.wraps(launch.destroy_process_group)
def _destroy_process_group(group: Any = None) -> None:
    launch.destroy_process_group(group)
    # A gloo group that outlives its end aborts the process when it exits.
    if DEEPSPEEDS_RELEASE.is_loaded and DEEPSPEEDS_RELEASE.is_there:
        DEEPSPEEDS_RELEASE.get()(group=group)


class _WhenImported(MetaPathFinder):
    """Calls a function once ``deepspeed.comm`` has been imported."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ``deepspeed.comm`` with a loader that calls the function; None for any other module."""
        if fullname != DEEPSPEED:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((other for other in others if other is not None), None)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            exec_module = loader.exec_module

            def exec_module_and_call(module: ModuleType) -> None:
                exec_module(module)
                self._function()

            loader.exec_module = exec_module_and_call  # type: ignore[method-assign]
        return spec
