"""Collectives that Python code issues on a process group, observed before torch's dispatcher is called.

``torch.distributed`` calls a method of the group for each collective, and the method calls the op. A kernel in front of
the op, as in `substrate`, needs arguments and result converted from C++ to Python and back. That takes about as long as
the rest of recording an ``all_reduce`` (`benchmarks/comm_overhead.py` prints both).

Only plain collectives on CPU tensors are observed here; `substrate` sees all others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import unwrap
from operator import is_
from types import FunctionType
from typing import Any, NamedTuple

import torch.distributed as dist

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.collectives.observed_op import (
    Observer,
    is_observed_elsewhere,
    is_plain,
    pass_kernels_by,
)
from dsexplore._internal.torch_internals.dispatch import CAN_SKIP_KEYS, leave_to_python
from dsexplore._internal.torch_internals.process_groups import (
    ALL_GATHER,
    ALL_GATHER_OPTIONS,
    ALL_REDUCE,
    ALL_REDUCE_OPTIONS,
    BROADCAST,
    BROADCAST_OPTIONS,
    REDUCE_SCATTER,
    REDUCE_SCATTER_OPTIONS,
)


def _allreduce(group: Any, tensors: Any, options: Any) -> tuple[Any, ...]:
    return tensors, group, None, None, options.asyncOp


def _broadcast(group: Any, tensors: Any, options: Any) -> tuple[Any, ...]:
    return tensors, group, options.rootRank, options.rootTensor, options.asyncOp


def _all_gather(group: Any, output: Any, tensor: Any, options: Any) -> tuple[Any, ...]:
    return output, tensor, group, options.asyncOp


def _reduce_scatter(group: Any, output: Any, tensor: Any, options: Any) -> tuple[Any, ...]:
    return output, tensor, group, None, options.asyncOp


class _IssuingMethod(NamedTuple):
    """A method of ``ProcessGroup`` that issues a collective."""

    raw_op: str
    """The op that it calls."""
    options: type
    """The type of its last argument."""
    op_args: Callable[..., tuple[Any, ...]]
    """Returns the op's arguments from the group and the method's; those that `ops` does not read are None."""


_METHODS = {
    ALL_REDUCE.attribute: _IssuingMethod("c10d::allreduce_", ALL_REDUCE_OPTIONS, _allreduce),
    BROADCAST.attribute: _IssuingMethod("c10d::broadcast_", BROADCAST_OPTIONS, _broadcast),
    ALL_GATHER.attribute: _IssuingMethod("c10d::_allgather_base_", ALL_GATHER_OPTIONS, _all_gather),
    REDUCE_SCATTER.attribute: _IssuingMethod("c10d::_reduce_scatter_base_", REDUCE_SCATTER_OPTIONS, _reduce_scatter),
}
"""By the method's name."""


class GroupMethods:
    """Observes the methods of ``ProcessGroup`` while installed; one at a time per process.

    A simulated world replaces methods too, and may begin and end before or after a recording. So `uninstall` leaves a
    method alone that was replaced since: our function inside the replacement then only calls the original.
    """

    def install(self, observer: Observer) -> None:
        """Replace each method, unless something unknown has replaced it already."""
        global _observer
        _observer = observer
        for name, observed in _functions.items() if CAN_SKIP_KEYS else ():
            current = vars(dist.ProcessGroup)[name]
            inner = unwrap(current, stop=partial(is_, observed))
            if not isinstance(inner, FunctionType):  # neither ours nor an unknown replacement of torch's method
                _replaced[name] = current
                setattr(dist.ProcessGroup, name, observed)

    def uninstall(self) -> None:
        """Restore the methods."""
        global _observer
        _observer = None
        for name, observed in _functions.items():
            if vars(dist.ProcessGroup)[name] is observed:
                setattr(dist.ProcessGroup, name, _replaced[name])


_observer: Observer | None = None
"""Observer to which all replaced methods report."""
_replaced: dict[str, Any] = {}
"""{method: original function}."""


def _observed(name: str) -> Callable[..., Any]:
    """Wrap a method of a process group to report to the observer."""
    raw_op, options, op_args = _METHODS[name]
    entry = ops.COMMUNICATION_OPS[raw_op]
    count = op_args.__code__.co_argcount - 1  # without the group

    def observed(group: Any, *args: Any, **kwargs: Any) -> Any:
        observer, original = _observer, _replaced[name]
        if (
            observer is None
            or len(args) != count
            or type(args[-1]) is not options
            or not is_plain(args[0])
            or not is_plain(args[-2])
            or is_observed_elsewhere()
        ):
            return original(group, *args, **kwargs)
        pending = observer.begins_before_kernel(raw_op, entry, op_args(group, *args))
        if pending is None:
            return original(group, *args, **kwargs)
        try:
            work = pass_kernels_by(original, group, *args)
        except BaseException as error:
            observer.raised(pending, error)
            raise
        observer.returned(pending, work)
        return work

    leave_to_python(observed.__code__)
    return wraps(getattr(dist.ProcessGroup, name))(observed)


_functions = {name: _observed(name) for name in _METHODS}
