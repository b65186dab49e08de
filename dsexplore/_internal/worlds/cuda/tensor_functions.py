"""Functions of torch that `StandInMode` implements: the device of a tensor, moves between devices, tensors of data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.fake_tensors import active_fake_mode
from dsexplore._internal.torch_internals.function_modes import (
    foreach_functions,
    pack_padded_sequence,
    parse_to,
    tensor_text,
)
from dsexplore._internal.torch_internals.tensors import storage_number
from dsexplore._internal.worlds.cuda.device_marks import CPU, device_of, place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode, implements, moved
from dsexplore._internal.worlds.fake.fake_lists import with_numbers

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@implements(Tensor.to)
def _to(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return ``tensor.to(...)``, on the device that a device or another tensor among the arguments names."""
    target, cpu_args, cpu_kwargs = _target_of_to(args, kwargs)
    to_args, to_kwargs = args, kwargs
    if target is None or isinstance(target, Tensor):
        device = device_of(args[0] if target is None else target)
    else:
        device = mode.read(target)
        if device is not None:
            to_args, to_kwargs = cpu_args, cpu_kwargs
    return moved(func(*to_args, **to_kwargs), args, device)


def _target_of_to(args: Args, kwargs: Kwargs) -> tuple[Any, Args, Kwargs]:
    """Return what names the device in ``tensor.to(*args, **kwargs)``, and the arguments with the CPU in its place.

    Returns:
        The device, or the tensor to take it from, or None; the arguments; the keyword arguments.
    """
    if "device" in kwargs:
        return kwargs["device"], args, {**kwargs, "device": CPU}
    if len(args) > 1 and isinstance(args[1], (str, torch.device, int)):
        return args[1], (args[0], CPU, *args[2:]), kwargs
    if len(args) > 1 and isinstance(args[1], Tensor):
        return args[1], args, kwargs
    return kwargs.get("other"), args, kwargs


@implements(Tensor.cuda)
def _cuda(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    target = args[1] if len(args) > 1 else kwargs.get("device")
    device = mode.read("cuda" if target is None else target)
    layout = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    return moved(Tensor.to(args[0], CPU, **layout), args, device)


@implements(Tensor.cpu)
def _cpu(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return moved(func(*args, **kwargs), args, None)


@implements(Tensor.type)
def _type(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the name of a tensor's type, such as ``torch.cuda.FloatTensor``, or the tensor converted to a type."""
    device = device_of(args[0])
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    if dtype is None:
        name: str = func(*args, **kwargs)
        return name if device is None else name.replace("torch.", "torch.cuda.", 1)
    if isinstance(dtype, type) and dtype.__module__ == "torch.cuda":
        dtype = f"torch.cuda.{dtype.__name__}"
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        device = device or mode.read("cuda")
        args, kwargs = (args[0], dtype.replace("torch.cuda.", "torch.", 1)), {}
    elif not isinstance(dtype, torch.dtype):
        device = None
    return moved(func(*args, **kwargs), args, device)


@implements(Tensor.type_as)
def _type_as(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return moved(func(*args, **kwargs), args, device_of(other))


@implements(torch.tensor, torch.as_tensor, torch.asarray)
def _make_of_data(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return a tensor made of data.

    Without a ``device``, a tensor keeps its device; the numbers of a list of tensors go to the CPU.
    """
    if active_fake_mode() is not None:
        args, kwargs = with_numbers(func, args, kwargs)
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    source = device_of(data) if isinstance(data, Tensor) else None
    if kwargs.get("device") is None:
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        made = func(*args, **kwargs)
        return moved(made, (data,), source) if isinstance(data, Tensor) else made
    made = mode.on_device(func, args, kwargs)
    if func is not torch.tensor and made is not data and not isinstance(data, (list, tuple)):
        made = _copy_if_shared(made, data, source)
    return made


def _copy_if_shared(result: Tensor, data: Any, source: torch.device | None) -> Tensor:
    """Return the result of ``as_tensor`` or ``asarray``, copied if it shares memory with data on another device.

    Args:
        result: tensor that torch made of the data.
        data: a tensor, or an array.
        source: CUDA device of the data; None for the CPU.
    """
    device = device_of(result)
    if device == source or (isinstance(data, Tensor) and not _share_memory(result, data)):
        return result
    copy = result.detach().clone().requires_grad_(result.requires_grad)
    place(copy, device)
    return copy


def _share_memory(tensor: Tensor, other: Tensor) -> bool:
    return storage_number(tensor.untyped_storage()) == storage_number(other.untyped_storage())


@implements(torch.device)
def _make_device(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return a device, also for ``torch.device(0)``, which torch accepts only if there is an accelerator."""
    if len(args) == 1 and not kwargs and isinstance(args[0], int):
        return func("cuda", args[0])
    return func(*args, **kwargs)


@implements(parse_to)
def _parse_to(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Parse the arguments of ``module.to``, also those of ``module.to(0)``, as `_make_device` does."""
    if args and isinstance(args[0], int):
        args = (mode.read(args[0]), *args[1:])
    elif isinstance(kwargs.get("device"), int):
        kwargs = {**kwargs, "device": mode.read(kwargs["device"])}
    return func(*args, **kwargs)


@implements(*foreach_functions)
def _foreach(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the results of a foreach function, each on the device of its tensor."""
    results = func(*args, **kwargs)
    tensors = args[0] if args else next(iter(kwargs.values()))
    if isinstance(results, (tuple, list)):
        for tensor, result in zip(tensors, results, strict=False):
            if result is not tensor:
                place(result, device_of(tensor))
    return results


@implements(pack_padded_sequence)
def _pack_padded_sequence(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the data of a packed sequence, on the device of the padded one, and its sizes, on the CPU."""
    data, sizes = func(*args, **kwargs)
    place(data, device_of(args[0]))
    return data, sizes


@implements(Tensor.device.__get__)
def _device(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return device_of(args[0]) or func(*args)


@implements(Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> bool:
    return device_of(args[0]) is not None


@implements(Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return device_of(args[0]) is None and func(*args)


@implements(Tensor.get_device)
def _get_device(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    device = device_of(args[0])
    return func(*args, **kwargs) if device is None else device.index


@implements(Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> None:
    func(*args)
    place(args[0], device_of(args[1]))


@implements(Tensor.pin_memory)
def _pin_memory(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return args[0]


@implements(Tensor.__repr__)
def _repr(mode: StandInMode, func: Any, args: Args, kwargs: Kwargs) -> str:
    """Return the text of a tensor, formatted inside the mode, so that it names the device."""
    with mode:
        return tensor_text(*args, **kwargs)
