"""Replace the functions of ``deepspeed.comm`` by this package's, for a job that is written for DeepSpeed.

`install` does it when it is called or, if DeepSpeed is not imported yet, once it is; `uninstall` undoes it.

Requirements:

1. Every reference is replaced: the engine holds the module ``deepspeed.comm`` as ``dist``, other modules hold single
   functions (``from deepspeed.comm import all_reduce``).
2. DeepSpeed may be imported before or afterwards.
3. `uninstall` leaves no reference behind, also in modules that were imported meanwhile; what a program imported from
   ``dsexplore.comm`` itself stays. So each replacement is a copy, which nothing else refers to.

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
"""The modules with this package's functions."""
_DEEPSPEEDS_MODULES = tuple(f"{DEEPSPEED}.{name}" for name in ("comm", "torch", "utils"))
"""The modules with DeepSpeed's."""
_CLASSES = ("P2POp", "Noop")
"""Classes that are replaced in addition to functions."""
_LOGGER = "comms_logger"


class Installed(AbstractContextManager["Installed"]):
    """The replacement of DeepSpeed's functions, until the end of a ``with`` block or `uninstall`."""

    def __init__(self) -> None:
        self._originals: dict[int, tuple[Any, Any]] = {}
        """{id of the replacement: (replacement, DeepSpeed's own)}."""
        self._loggers: list[tuple[ModuleType, Any]] = []
        """DeepSpeed's modules with a logger, and that logger. Ours is a single object, so it cannot be found by
        identity."""
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
        a context manager that undoes it at the end of its block, as does `uninstall`.
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
    """Yield each of DeepSpeed's functions and classes that this package has too, with this package's."""
    ours = {
        name: value
        for module in _OUR_MODULES
        for name, value in vars(module).items()
        if not name.startswith("_") and (_is_function_of_ours(value) or name in _CLASSES)
    }
    ours["destroy_process_group"] = _destroy_process_group
    for module in _imported(*_DEEPSPEEDS_MODULES):
        for name, value in vars(module).items():
            if name in ours and (name in _CLASSES or _is_function_of(value, DEEPSPEED)):
                yield value, ours[name]


def _imported(*names: str) -> list[ModuleType]:
    """Return the modules of these names that this process has imported."""
    return [sys.modules[name] for name in names if name in sys.modules]


def _is_function_of_ours(value: Any) -> bool:
    return isinstance(value, p2p.SendOrReceive) or _is_function_of(value, __package__)


def _is_function_of(value: Any, package: str) -> bool:
    return isinstance(value, FunctionType) and f"{value.__module__}.".startswith(f"{package}.")


def _copy(ours: Any) -> Any:
    """Return a copy that differs from the original in identity only; a function's copy is as fast."""
    if isinstance(ours, FunctionType):
        function = FunctionType(ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__)
        return functools.update_wrapper(function, ours, ("__kwdefaults__", *functools.WRAPPER_ASSIGNMENTS))
    return type(ours.__name__, (ours,), {"__doc__": ours.__doc__}) if isinstance(ours, type) else copy(ours)


def _replace_everywhere(replacements: dict[int, tuple[Any, Any]]) -> None:
    """Replace objects in every module of the process.

    Args:
        replacements: {id of the object to replace: (that object, its replacement)}.
    """
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(module, ModuleType) and isinstance(names, dict):
            for name, value in list(names.items()):
                replacement = replacements.get(id(value))
                if replacement is not None and replacement[0] is value:
                    names[name] = replacement[1]


@functools.wraps(launch.destroy_process_group)
def _destroy_process_group(group: Any = None) -> None:
    launch.destroy_process_group(group)
    # A gloo group that outlives its end aborts the process when it exits.
    if DEEPSPEEDS_RELEASE.is_loaded and DEEPSPEEDS_RELEASE.is_there:
        DEEPSPEEDS_RELEASE.get()(group=group)


class _WhenImported(MetaPathFinder):
    """Calls a function once ``deepspeed.comm`` has been imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

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
            execute = loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                self._then()

            loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
