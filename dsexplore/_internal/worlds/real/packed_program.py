"""`pack_program`: pickles programs for local ranks, functions of the user by value and those of packages by name."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.user_code import is_user_module


def pack_program(program: Callable[..., Any] | str, args: Sequence[Any], namespace: Mapping[str, Any] | None) -> bytes:
    """Pickle the program of a `RankJob`.

    Args:
        program: a function, or source text.
        args: arguments of the function.
        namespace: further names for source text; None for none.

    Raises:
        UsageError: the program cannot be pickled, or needs cloudpickle, which is not installed.
    """
    if isinstance(program, str) and not namespace:
        return pickle.dumps((program, {}))
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install cloudpickle, or give the program as source text without namespace"
        raise UsageError(f"functions and objects are sent to ranks with cloudpickle: {hint}") from error
    functions = [_inner(value) for value in (program, *args)]
    modules = {sys.modules.get(function.__module__ or "") for function in functions if function is not None}
    by_value = [module for module in modules if module is not None and is_user_module(module)]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    extra = dict(namespace or {}) if isinstance(program, str) else tuple(args)
    try:
        return _pickled((program, extra))
    except Exception as error:
        raise UsageError(f"the program cannot be sent to its ranks: {error}; pass plain data and functions") from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _pickled(value: Any) -> bytes:
    """Pickle a value with cloudpickle; a module of a subclass of `ModuleType`, such as ``torch.ops``, by its name."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _inner(program: Any) -> FunctionType | None:
    """Return the function, or the function inside a ``functools.partial``; None for other objects."""
    if isinstance(program, partial):
        return _inner(program.func)
    return program if isinstance(program, FunctionType) else None
