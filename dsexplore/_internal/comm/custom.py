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

_LOG_PARAMETERS = ("prof", "log_name", "debug")
Function = TypeVar("Function", bound=Callable[..., Any])


@names_arguments
def timed_op(func: Function) -> Function:
    """Decorate a function that communicates, so that the log shows it like a built-in collective.

    The function is logged under its own name (or the call's ``log_name``), with the bytes of its first tensor or list
    of tensors and bus factor 1. Its parameters ``group`` and ``async_op``, if any, have the same meaning as in the
    built-in calls. The caller may pass ``prof``, ``log_name`` and ``debug``, which reach the function only if it has
    such parameters.

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
        passed = {key: value for key, value in named.items() if key in parameter_names or key not in _LOG_PARAMETERS}
        bound = signature.bind(*args, **passed)
        bound.apply_defaults()
        arguments = bound.arguments
        spelling = Spelling(
            name=func.__name__,
            op=func.__name__,
            call=lambda *_: func(*args, **passed),
            c10d_op="c10d::allgather_",
            as_op=_first_tensors,
            is_custom=True,
        )
        return issue(
            spelling,
            tuple(arguments.values()),
            arguments.get("group"),
            is_async=bool(arguments.get("async_op", False)),
            prof=bool(named.get("prof")),
            log_name=named.get("log_name") or arguments.get("log_name") or func.__name__,
            debug=named.get("debug"),
        )

    return logged  # type: ignore[return-value] # wraps() keeps the signature


def _first_tensors(args: Sequence[Any]) -> Sequence[Any]:
    """Return all_gather arguments whose output is the first tensor or list of tensors in `args`, as one message."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return ([[arg]],)
        if isinstance(arg, (list, tuple)) and arg and all(isinstance(tensor, torch.Tensor) for tensor in arg):
            return ([arg],)
    return ()
