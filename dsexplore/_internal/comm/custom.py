"""A decorator for user functions that communicate; the log shows them under their own names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from dsexplore._internal.comm.issue import issue
from dsexplore._internal.comm.spellings import Spelling
from dsexplore._internal.signatures import names_arguments

_OF_THE_LOG = ("prof", "log_name", "debug")
Function = TypeVar("Function", bound=Callable[..., Any])


@names_arguments
def timed_op(func: Function) -> Function:
    """Decorate a function that communicates, so that the log shows it like a built-in collective.

    The function is logged under its own name (or the call's ``log_name``), with the bytes of its first tensor or list
    of tensors and bus factor 1. Its parameters ``group`` and ``async_op``, if any, mean what they mean for the built-in
    calls. The caller may pass ``prof``, ``log_name`` and ``debug``, which reach the function only if it has such
    parameters.

    Examples:
        >>> @dist.timed_op
        ... def exchange(tensor, group=None, prof=False, log_name="exchange", debug=None):
        ...     return torch.distributed.all_reduce(tensor)
        >>> with dsexplore.simulate(4):
        ...     exchange(torch.ones(8))
    """
    signature = inspect.signature(func)
    parameter_names = set(signature.parameters)

    @functools.wraps(func)
    def logged(*args: Any, **named: Any) -> Any:
        log = {key: named.get(key) for key in _OF_THE_LOG}
        passed = {key: value for key, value in named.items() if key in parameter_names or key not in _OF_THE_LOG}
        bound = signature.bind(*args, **passed)
        bound.apply_defaults()
        arguments = bound.arguments
        name = func.__name__
        spelling = Spelling(
            name, name, lambda *_: func(*args, **passed), "c10d::allgather_", _first_tensors, is_custom=True
        )
        log_name = log["log_name"] or arguments.get("log_name") or name
        is_async = bool(arguments.get("async_op", False))
        values = tuple(arguments.values())
        return issue(spelling, values, arguments.get("group"), is_async, bool(log["prof"]), log_name, log["debug"])

    return logged  # type: ignore[return-value] # wraps() keeps the signature


def _first_tensors(args: Sequence[Any]) -> Sequence[Any]:
    """Return all_gather arguments whose output is the first tensor or list of tensors in `args`, as one message."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return ([[value]],)
        if isinstance(value, (list, tuple)) and value and all(isinstance(tensor, torch.Tensor) for tensor in value):
            return ([value],)
    return ()
