"""Replacements for functions of torch that fail, misbehave or take too long on fake tensors.

Under ``FakeTensorMode`` of torch 2.13,

* ``module.to(dtype)`` raises, because a parameter cannot be swapped while the mode refers to it: here the parameter
  gets the new data and stays the same object, as on real tensors;
* ``fully_shard`` creates one fake tensor per rank and parameter, which takes minutes for thousands of ranks: here a
  chunk is created when it is read;
* ``nn.init.trunc_normal_`` redraws until all values lie within its bounds, forever: here it draws once;
* a functional collective waits at once, as under torch.compile: here it waits at the first use of its result, as on
  real tensors;
* ``FullyShardedDataParallel`` checks the address of a tensor's memory, which is 0: here it checks the size;
* a fake tensor with one known number, as of ``torch.tensor(0.5)``, keeps the number when its data is replaced, as by
  ``module.bfloat16()``, and DDP sends the old number: here it gets the new one;
* workers of a `DataLoader` have no memory to share: here the loader reads in the program's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, overload

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.data import DataLoader

from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.fake_tensors import FAKE_DATA, FakeTensor, share_constant, without_fake_mode
from dsexplore._internal.torch_internals.fsdp import CHUNK, HAS_MEMORY
from dsexplore._internal.torch_internals.modules import APPLY, TRUNC_NORMAL, own_parameters
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import WRAP_RESULT, AsyncCollectiveTensor
from dsexplore._internal.torch_internals.tensors import DATA_LOADER_INIT, can_take_data
from dsexplore._internal.worlds.remarks import Remarks

F = TypeVar("F", bound=Callable[..., Any])


def outside_fake_mode(function: F) -> F:
    """Wrap a function to run outside the active `FakeTensorMode`, if there is one."""

    @wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with without_fake_mode():
            return function(*args, **kwargs)

    return real  # type: ignore[return-value]  # wraps keeps the signature


def _wrap_result(original: Callable[..., torch.Tensor], _parts: Parts) -> Callable[..., torch.Tensor]:
    """Wrap the results of functional collectives as tensors that wait at their first use."""

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or get_proxy_mode() is not None:
            return original(tensor)
        awaited: torch.Tensor = _Awaited.apply(tensor)  # type: ignore[no-untyped-call]  # torch types none of it
        return awaited

    return wrapped


class _Awaited(torch.autograd.Function):
    """An op that wraps a fake tensor as torch's own op wraps a real one; torch's op does not wrap fake tensors."""

    @staticmethod
    def forward(_context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return AsyncCollectiveTensor(tensor)  # type: ignore[no-any-return]

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _apply_in_place(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap ``Module._apply`` to convert fake parameters in place, as for ``module.to``."""

    def apply(module: nn.Module, /, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        parameters = own_parameters(module)
        fakes = {name: p for name, p in parameters.items() if isinstance(p, FakeTensor)}
        try:
            for name in fakes:
                parameters[name] = None
            original(module, fn, recurse)
        finally:
            parameters.update(fakes)
        for name, parameter in fakes.items():
            parameters[name] = _converted(parameter, fn)
        return module

    return apply


def _converted(parameter: Any, function: Callable[..., Any]) -> nn.Parameter:
    """Return the same parameter with new data; or, as torch does, a new one if it cannot take the data (from meta)."""
    with torch.no_grad():
        data = function(parameter)
        grad = None if parameter.grad is None else function(parameter.grad)
    converted: Any = parameter
    if can_take_data(parameter, data):
        parameter.grad = None
        parameter.data = data
        parameter.fake_device = data.fake_device
    else:
        converted = nn.Parameter(data, parameter.requires_grad)
    converted.grad = grad
    return converted  # type: ignore[no-any-return]  # a FakeTensor that is a Parameter


class Chunks(Sequence[torch.Tensor]):
    """The result of ``torch.chunk``, padded with empty tensors to a number of chunks; each is created when read."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._length = -(-tensor.size(dim) // num_chunks)  # that of the last may be shorter

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = range(self._count)[index]
        size = self._tensor.size(self._dim)
        start = position * self._length
        if start >= size > 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._length, size - start))


def _draw_once(original: Callable[..., torch.Tensor], _parts: Parts) -> Callable[..., torch.Tensor]:
    """Wrap ``trunc_normal_`` to draw fake values once."""
    parameters = signature(original)

    def trunc_normal(*args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = parameters.bind(*args, **kwargs).arguments
        tensor: torch.Tensor = arguments["tensor"]
        if not isinstance(local_tensor(tensor) if isinstance(tensor, DTensor) else tensor, FakeTensor):
            return original(*args, **kwargs)
        with torch.no_grad():
            return tensor.normal_(arguments["mean"], arguments["std"], generator=arguments.get("generator"))

    return trunc_normal


def _drop_workers(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``DataLoader.__init__`` to create no workers, with a remark if the program asks for them."""
    parameters = signature(original)
    no_workers = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}

    @wraps(original)
    def init(loader: DataLoader[Any], /, *args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(loader, *args, **kwargs).arguments
        if arguments.get("num_workers", 0):
            parts[Remarks].say("a DataLoader of fake tensors has no workers: it reads in the script's own process")
            arguments = {**arguments, **no_workers, "multiprocessing_context": None}
        arguments.pop("self")
        original(loader, **arguments)

    return init


def _follow_data(data: Any, _parts: Parts) -> property:
    """Wrap ``FakeTensor.data``, so that the tensor has the known value of the data that is assigned."""

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        data.__set__(tensor, value)
        share_constant(tensor, value)

    return property(data.__get__, set_data)


PATCHES: tuple[Entry, ...] = (
    Patch(CHUNK, "it creates the chunks of all ranks", lambda _original, _parts: Chunks, on_import=True),
    Patch(APPLY, "it cannot swap fake parameters", _apply_in_place, when="fake"),
    Patch(WRAP_RESULT, "it waits at once for collectives on fake tensors", _wrap_result, when="fake"),
    Patch(TRUNC_NORMAL, "it redraws forever on fake tensors", _draw_once, when="fake", by_code=True),
    Patch(
        HAS_MEMORY,
        "it checks the address of a fake tensor, which is 0",
        lambda _original, _parts: lambda tensor: tensor.untyped_storage().size() > 0,
        when="fake",
        by_code=True,
    ),
    Patch(DATA_LOADER_INIT, "its workers have no memory to share", _drop_workers, when="fake"),
    Patch(FAKE_DATA, "it keeps the constant of the replaced data", _follow_data, when="fake"),
)
