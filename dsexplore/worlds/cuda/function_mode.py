"""The function mode that reads ``cuda`` as the CPU, and answers what a script asks its tensors.

Every call from Python into torch passes a `TorchFunctionMode`. Device arguments are rewritten there, results carry the
device that the script believes them to be on (`device_marks`), and ``tensor.device``, ``is_cuda`` and ``get_device()``
answer it. What C++ calls by itself, autograd and DDP's reducer among it, sees CPU tensors.

torch takes the mode off while it runs a function for it, and ``backward`` is such a function: `patch_backward` puts the
mode on again, so that hooks of FSDP, checkpoint and the script find the devices that forward found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.autograd import graph
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext, _device_constructors

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import CPU, PLAIN, device_of, mark, mark_parts, marked
from dsexplore.worlds.cuda.mixed_devices import refuse_mixed
from dsexplore.worlds.fake.fake_lists import with_numbers

Handler = Callable[["StandInMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the decorated function to handle calls of ``functions`` while the mode is entered."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


class StandInMode(TorchFunctionMode):
    """Reads ``cuda`` as the CPU.

    Args:
        current: returns the index of the current CUDA device.
    """

    def __init__(self, current: Callable[[], int]) -> None:
        super().__init__()
        self.current = current
        self.closed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch for a script that believes in CUDA."""
        if self.closed:  # a thread of the script that outlived the block
            return func(*args, **(kwargs or {}))
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        if kwargs:
            if "device" in kwargs:
                return self.on_device(func, args, kwargs)
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            result = func(*args, **kwargs)
        else:
            result = func(*args)
        if isinstance(result, Tensor):
            # A tensor that was written to, as by copy_, stays where it was.
            if result._dsexplore_cuda_device is None and not (args and result is args[0]):  # type: ignore[attr-defined]
                device = marked(args) or (marked(kwargs.values()) if kwargs else None)
                if device == CPU:
                    mark(result, device)
                elif device is not None:
                    result._dsexplore_cuda_device = device  # type: ignore[attr-defined]
                    if type(result) not in PLAIN:
                        mark_parts(result, device)
                    if kwargs or len(args) > 1 or type(args[0]) in (list, tuple):
                        refuse_mixed(func, args, kwargs, device)
                elif type(result) is DTensor:
                    mark_parts(result, self.believed(result))
        elif isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            device = marked(args) or (marked(kwargs.values()) if kwargs else None)
            if device is not None:
                mark(result, device)
        return result

    def read(self, device: Any) -> torch.device | None:
        """The CUDA device, with its index, that an argument names; None if it names another or none."""
        if isinstance(device, torch.device):
            if device.type != "cuda":
                return None
            return device if device.index is not None else torch.device("cuda", self.current())
        if isinstance(device, str):
            return self.read(torch.device(device)) if device.startswith("cuda") else None
        if isinstance(device, int) and not isinstance(device, bool):
            return torch.device("cuda", device)
        return None

    def on_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that names a device."""
        device = self.read(kwargs["device"])
        if device is not None or kwargs.get("pin_memory"):
            kwargs = {**kwargs, "device": CPU if device is not None else kwargs["device"]}
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        result = func(*args, **kwargs)
        if device is None and kwargs["device"] is None:
            device = marked((result,)) or marked(args)  # of the default device, or of what it was made from
            if isinstance(result, DTensor):
                if device == CPU:
                    mark(result, CPU)
                return result
        return moved(result, args, device)

    def believed(self, tensor: Tensor) -> torch.device | None:
        """The CUDA device that a tensor is believed to be on, or None."""
        return device_of(tensor, self.current())


def moved(result: Any, args: tuple[Any, ...], device: torch.device | None) -> Any:
    """A result on the device where it is believed to be: a copy of the tensor that it was moved from.

    Args:
        result: of the call that moves.
        args: of that call.
        device: the CUDA device that the result is moved to; None for the CPU.
    """
    if not isinstance(result, Tensor):
        mark(result, device)
        return result
    wanted = device
    if isinstance(result, DTensor):
        wanted = CPU if device is None and result.device_mesh.device_type == "cuda" else None
    if result._dsexplore_cuda_device == wanted:  # type: ignore[attr-defined]
        return result
    if args and result is args[0]:
        with torch._C.DisableTorchFunction():
            result = _with_class(result.clone(), type(result))
    mark(result, wanted)
    if wanted is None and device is not None:
        mark_parts(result, device)
    return result


def _with_class(made: Any, kind: type[Tensor]) -> Any:
    """A new tensor with the class that torch gives to what it makes of a tensor of this class."""
    makes_plain = issubclass(kind, Parameter) or kind.__torch_function__ is torch._C._disabled_torch_function_impl
    if issubclass(kind, type(made)) and not makes_plain:
        made.__class__ = kind
    return made


def to_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Take what ``to(...)`` names as its device out of its arguments.

    Returns:
        the device or tensor that was named, or None; then the arguments with the CPU in its place.
    """
    if "device" in kwargs:
        return kwargs["device"], args, {**kwargs, "device": CPU}
    if len(args) > 1 and isinstance(args[1], (str, torch.device, int)):
        return args[1], (args[0], CPU, *args[2:]), kwargs
    if len(args) > 1 and isinstance(args[1], Tensor):
        return args[1], args, kwargs
    return kwargs.get("other"), args, kwargs


@handles(Tensor.to)
def _to(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named, cpu_args, cpu_kwargs = to_arguments(args, kwargs)
    tensor = args[0]
    if isinstance(named, Tensor):
        return moved(func(*args, **kwargs), args, mode.believed(named))
    if named is None:
        result = func(*args, **kwargs)
        if result is not tensor:
            mark(result, mode.believed(tensor))
        return result
    device = mode.read(named)
    if device is not None:
        return moved(func(*cpu_args, **cpu_kwargs), args, device)
    return moved(func(*args, **kwargs), args, None)


@handles(torch.device)
def _make_device(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.device(0)``: torch reads a number as a device only where there is an accelerator."""
    if len(args) == 1 and not kwargs and isinstance(args[0], int):
        return func("cuda", args[0])
    return func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def _parse_to(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``module.to(0)``, likewise."""
    if args and isinstance(args[0], int):
        args = (mode.read(args[0]), *args[1:])
    elif isinstance(kwargs.get("device"), int):
        kwargs = {**kwargs, "device": mode.read(kwargs["device"])}
    return func(*args, **kwargs)


@handles(torch.tensor, torch.as_tensor)
def _of_numbers(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Numbers of tensors in a list are copied to the CPU unless a device is named; a tensor stays where it is."""
    if active_fake_mode() is not None:
        args, kwargs = with_numbers(func, args, kwargs)
    if kwargs.get("device") is not None:
        return mode.on_device(func, args, kwargs)
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    made = func(*args, **kwargs)
    data = args[0] if args else kwargs.get("data")
    if isinstance(data, Tensor) and made is not data:
        mark(made, mode.believed(data))
    return made


@handles(Tensor.cuda)
def _cuda(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    named = rest[0] if rest else kwargs.get("device")
    device = mode.read("cuda" if named is None else named)
    layout = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    return moved(Tensor.to(tensor, CPU, **layout), args, device)


@handles(Tensor.cpu)
def _cpu(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return moved(func(*args, **kwargs), args, None)


@handles(torch._VF._pack_padded_sequence)
def _pack_padded_sequence(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The data of a packed sequence; its sizes stay on the CPU."""
    data, sizes = func(*args, **kwargs)
    mark(data, mode.believed(args[0]))
    return data, sizes


@handles(Tensor.device.__get__)
def _device(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.believed(args[0]) or func(*args)


@handles(Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return mode.believed(args[0]) is not None


@handles(Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.believed(args[0]) is None and func(*args)


@handles(Tensor.get_device)
def _get_device(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = mode.believed(args[0])
    return func(*args, **kwargs) if device is None else device.index


@handles(Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    func(*args)
    mark(args[0], mode.believed(args[1]))


@handles(Tensor.pin_memory)
def _pin_memory(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


@handles(Tensor.__repr__)
def _repr(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Written with the mode entered, so that the text names the device."""
    with mode:
        text: str = torch._tensor_str._str(*args, **kwargs)
    return text


@handles(Tensor.type)
def _type(mode: StandInMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.type()`` names ``torch.cuda.FloatTensor`` and the like, and takes such names."""
    device = mode.believed(args[0])
    named = args[1] if len(args) > 1 else kwargs.get("dtype")
    if named is None:
        name: str = func(*args, **kwargs)
        return name if device is None else name.replace("torch.", "torch.cuda.", 1)
    if isinstance(named, type) and named.__module__ == "torch.cuda":
        named = f"torch.cuda.{named.__name__}"
    if isinstance(named, str) and named.startswith("torch.cuda."):
        device = mode.read("cuda")
        args, kwargs = (args[0], named.replace("torch.cuda.", "torch.", 1)), {}
    elif not isinstance(named, torch.dtype):
        device = None
    return moved(func(*args, **kwargs), args, device)


def patch_backward(patches: Patches, mode: StandInMode) -> None:
    """Enter the mode while autograd calls hooks and backward functions of Python."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if mode in _get_current_function_mode_stack():
                return original(*args, **kwargs)
            with mode:
                return original(*args, **kwargs)

        return run_backward

    patches.function(graph._engine_run_backward, build)


def patch_default_device(patches: Patches, mode: StandInMode) -> None:
    """Make ``with torch.device("cuda")`` and ``torch.set_default_device("cuda")`` make CPU tensors believed on it."""

    def in_context(context: DeviceContext, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None or func not in _device_constructors():
            return func(*args, **kwargs)
        return mode.on_device(func, args, {**kwargs, "device": context.device})

    before = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    patches.attribute(DeviceContext, "__torch_function__", in_context)
    patches.callback(_restore_default_device, before)


def _restore_default_device(before: DeviceContext | None) -> None:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not before:
        torch.set_default_device(None if before is None else before.device)


def patch_threads(patches: Patches, mode: StandInMode) -> None:
    """Make the mode entered in threads that the script starts: function modes belong to one thread."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        run = thread.run

        def run_in_mode() -> None:
            with mode:
                run()

        thread.run = run_in_mode  # type: ignore[method-assign]
        start(thread)

    patches.attribute(threading.Thread, "start", started)


def leave(mode: StandInMode) -> None:
    """Take the mode off the stack of this thread, wherever the script's own modes left it."""
    mode.closed = True
    above = []
    while mode in _get_current_function_mode_stack():
        taken = _pop_mode()
        if taken is not mode:
            above.append(taken)
    for other in reversed(above):
        _push_mode(other)
