"""Programs of local ranks as bytes: functions of test files and notebooks travel by value."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsexplore.errors import UsageError


def pack_program(program: Callable[..., Any] | str, args: Sequence[Any], namespace: Mapping[str, Any] | None) -> bytes:
    """Pickle the program of a `RankJob`; functions of test files and notebooks are pickled by value.

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
    module = sys.modules.get(getattr(program, "__module__", "") or "")
    by_value = module is not None and module.__name__.partition(".")[0] != "dsexplore"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((program, dict(namespace or {}) if isinstance(program, str) else tuple(args)))
    except Exception as error:
        raise UsageError(f"the program cannot be sent to its ranks: {error}; pass plain data and functions") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return packed
