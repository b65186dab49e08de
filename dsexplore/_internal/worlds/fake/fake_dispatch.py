"""`SimulationMode`: torch's fake tensor mode, extended for simulated worlds.

* It invents values that a program reads, and sizes that depend on values, and tracks known values of results.
* Integer tensors that C++ reads have memory, and ops on them run.
* Custom ops that communicate run their implementation, so that the collectives inside are recorded.
* It supports ops that torch's mode does not: grouped products of all dtypes, and ops that call functions.

Results of all other ops are those of `FakeTensorMode`. Its cached results are reused for later calls, also in other
worlds and in processes that run as other ranks (`shared_entries`). Ops that torch does not cache, those of c10d, FSDP2
and the profiler, take a shorter path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dsexplore._internal.capture.collectives import mode_collectives
from dsexplore._internal.torch_internals import aten
from dsexplore._internal.torch_internals.dispatch import (
    OpOverload,
    active_dispatch_modes,
    python_function_of,
    with_torch_function,
)
from dsexplore._internal.torch_internals.fake_mode import Key, ShortKeyMode
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.process_groups import AsyncCollectiveTensor
from dsexplore._internal.worlds.cuda.first_use import FirstUse, is_cuda, made_on_cpu
from dsexplore._internal.worlds.fake.guessed_sizes import READS, packed
from dsexplore._internal.worlds.fake.invented_values import Inventor
from dsexplore._internal.worlds.fake.known_values import set_written
from dsexplore._internal.worlds.fake.real_integers import RealIntegers
from dsexplore._internal.worlds.fake.value_rules import note

_aten = torch.ops.aten
_PACK = aten.pack_padded_sequence.default
_GROUPED = aten.grouped_mm.default
_FUSED_ADAM = frozenset({aten.fused_adam.default, aten.fused_adamw.default})
"""Ops that write into thousands of tensors, and whose fake implementation does nothing."""
_SAME = {aten.unsafe_view.default: _aten.view.default, aten.wait.default: _aten.empty_like.default}
"""Ops that torch does not cache, with the cached ops that return the same on fake tensors."""
_FRAMES = 4
"""Number of Python frames from `SimulationMode.__torch_dispatch__` to the call of a collective's op."""

_kept: dict[Key, Any] = {}
"""{key of a call: torch's cached result of the op}, for this process; None for a call that torch does not cache."""
_entered: SimulationMode | None = None


def entered() -> SimulationMode | None:
    """Return the mode of the open world, even while torch has left it temporarily; None without such a world."""
    return _entered


@contextmanager
def fake_mode(inventor: Inventor | None = None) -> Iterator[SimulationMode]:
    """Enter a `SimulationMode` that can be left even if the program entered a mode and did not leave it."""
    global _entered
    mode = SimulationMode(allow_non_fake_inputs=True)
    if inventor is not None:
        mode.inventor = inventor
    before, _entered = _entered, mode
    mode.__enter__()
    try:
        yield mode
    finally:
        _entered = before
        if mode in active_dispatch_modes():
            mode.__exit__(None, None, None)


def known_results() -> list[tuple[str, Key, Any]]:
    """Return the cached results of ops, for `learn_results` in another process.

    Returns:
        Name of the op, the rest of the key, and the result, for each call.
    """
    return [
        (str(op), tuple(rest), kept)
        for (op, *rest), kept in _kept.items()
        if kept is not None and str(op).startswith("aten.")  # other ops may not be loaded there
    ]


def learn_results(results: Iterable[tuple[str, Key, Any]]) -> None:
    """Add results of ops that another process cached."""
    for name, rest, kept in results:
        _kept.setdefault((attrgetter(name)(torch.ops), *rest), kept)


class SimulationMode(ShortKeyMode):
    """A `FakeTensorMode` for programs of plain fake tensors and DTensors.

    Attributes:
        inventor: inventor of the values that a program reads.
        integers: integer tensors with memory.
        first_use: called with the first tensor that is created on ``cuda``, for which torch has no hook in this mode;
            None for no call.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inventor = Inventor()
        self.integers = RealIntegers()
        self.first_use: FirstUse | None = None
        self._silent: set[Key] = set()
        """Keys of calls that return nothing and change no shape."""

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an op on fake tensors; return NotImplemented for DTensors and async results, whose classes handle it."""
        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented
        kwargs = kwargs or {}
        if self.first_use is not None and is_cuda(kwargs.get("device")):
            use, self.first_use = self.first_use, None
            use.happens()
            with self:
                return made_on_cpu(func, args, dict(kwargs))
        if not types:
            if not isinstance(func, OpOverload):
                return self.call_higher_order(func, args, kwargs)
            result = self.integers.run(func, args, kwargs)
            if result is not NotImplemented:
                return result
        read = READS.get(func)
        if read is not None and _needs_invention(args):
            return read(self.inventor, args, kwargs)
        if func is _PACK:
            return packed(self.inventor, self.integers, *args)
        if func in _FUSED_ADAM:
            return None
        if func is _GROUPED and args[0].dtype != torch.bfloat16:
            return self._grouped(func, types, args, kwargs)
        result = self._result(_SAME.get(func, func), types, args, kwargs)
        note(func, args, kwargs, result)
        return result

    def _grouped(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return a grouped product for a dtype other than bfloat16, which torch's fake implementation refuses."""
        narrow = [torch.empty_like(arg, dtype=torch.bfloat16) for arg in args[:2]]
        wide: Any = super().dispatch(func, types, (*narrow, *args[2:]), kwargs)
        return torch.empty_like(wide, dtype=kwargs.get("out_dtype") or args[0].dtype)

    def _result(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an op, from torch's cache if it has one."""
        key = self.key_of(func, args, kwargs)
        kept = _kept.get(key) if key is not None else None
        if kept is not None:
            return self.result_of(kept, args)
        namespace = func.namespace
        if namespace == "profiler":
            return func(*args, **kwargs)
        if namespace == "fsdp" and key is not None:
            return self._fsdp_result(func, types, args, kwargs, key)
        if namespace in aten.COLLECTIVES and self._are_plain(args):
            return self._collective(func, args, kwargs)
        implementation = communicating_implementation(func)
        if implementation is not None:
            with with_torch_function(), self:
                return implementation(*args, **kwargs)
        result = super().dispatch(func, types, args, kwargs)
        if key is not None and key not in _kept:
            _kept[key] = self.cache_entry(key)
        return result

    def _collective(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a collective; its meta kernel is called each time."""
        with self.as_meta():
            result = func(*args, **kwargs) if kwargs else mode_collectives.call(func, args, _FRAMES)
        if func.namespace == "c10d":
            set_written(_tensors(args))
        return self._all_fake(result, next(_tensors(args)).fake_device)

    def _all_fake(self, result: Any, device: torch.device) -> Any:
        """Return a result with each meta tensor replaced by a fake tensor on a device."""
        if isinstance(result, (list, tuple)):
            return type(result)(self._all_fake(element, device) for element in result)
        return self.fake_tensor(result, device) if type(result) is torch.Tensor else result

    def _fsdp_result(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any], key: Key
    ) -> Any:
        """Return the result of an FSDP2 op; most fill tensors and return nothing."""
        if func.name() == "fsdp::all_gather_copy_in":
            _, gathered, _, length, rank = args
            slice_args = (gathered, 0, length * rank, length * (rank + 1))
            return self._result(_aten.slice.Tensor, (FakeTensor,), slice_args, {}), gathered
        if key in self._silent:
            return None
        result = super().dispatch(func, types, args, kwargs)
        if result is None and self.key_of(func, args, kwargs) == key:
            self._silent.add(key)
        return result

    def _are_plain(self, args: Iterable[Any]) -> bool:
        """Return True if the arguments contain tensors, all of them fake tensors of this mode without a known value."""
        tensors = list(_tensors(args))
        return bool(tensors) and all(type(tensor) is FakeTensor and self.is_plain(tensor) for tensor in tensors)


def _needs_invention(args: Sequence[Any]) -> bool:
    """Return True if the tensor that is read is fake, and not a small constant, whose value torch knows."""
    return isinstance(args[0], FakeTensor) and args[0].constant is None


def _tensors(args: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among arguments, those in lists included."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)


_NAMES_OF_COLLECTIVES = (
    *("all_gather", "all_reduce", "all_to_all", "barrier", "batch_isend_irecv", "broadcast", "gather", "irecv"),
    *("isend", "permute_tensor", "recv", "reduce", "scatter", "send"),
)
"""Prefixes of the names of torch's collectives."""


@cache
def communicating_implementation(op: Any) -> Callable[..., Any] | None:
    """Return the Python function of a custom op that calls collectives; None for all other ops.

    torch calls the fake implementation of a custom op, which returns a result and sends nothing. For ops with
    collectives, such as those of context parallelism for FlexAttention, the real implementation has to run instead.
    """
    function = python_function_of(op)
    return function if isinstance(function, FunctionType) and _communicates(function, set()) else None


def _communicates(function: FunctionType, seen: set[CodeType]) -> bool:
    """Return True if a function, or a function of the same module that it calls, calls a collective of torch."""
    if function.__code__ in seen:
        return False
    seen.add(function.__code__)
    names = set(_names_in(function.__code__))
    values = [function.__globals__.get(name) for name in names]
    is_named = any(name.startswith(_NAMES_OF_COLLECTIVES) for name in names)
    if is_named and ("distributed" in names or any(_is_torchs(value) for value in values)):
        return True
    called = [value for value in values if isinstance(value, FunctionType) and value.__module__ == function.__module__]
    return any(_communicates(other, seen) for other in called)


def _is_torchs(value: Any) -> bool:
    """Return True if a global is a module of torch.distributed or a function imported from one."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.startswith("torch.distributed")


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in those nested inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names_in(value)
