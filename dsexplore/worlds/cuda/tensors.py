"""Calls of `torch.Tensor` that pass by every function mode: tensors made of another one's memory, as parameters are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import save_on_cpu
from torch.distributed.tensor import DTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _foreach_utils, checkpoint

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import CPU, device_of, mark, mark_parts
from dsexplore.worlds.cuda.function_mode import StandInMode


def patch_tensors(patches: Patches) -> None:
    """Change the calls of `torch.Tensor` that no function mode sees."""
    make: Callable[..., Tensor] = Tensor._make_subclass
    wrap: Callable[..., Tensor] = Tensor._make_wrapper_subclass

    def make_subclass(cls: type, data: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = make(cls, data, *args, **kwargs)
        mark(made, data._dsexplore_cuda_device)  # type: ignore[attr-defined]
        return made

    def make_wrapper(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            return wrap(cls, *args, device=device, **kwargs)
        made = wrap(cls, *args, device=CPU, **kwargs)
        mark(made, torch.device(device))
        return made

    def copied(tensor: Tensor) -> Tensor:
        made: Tensor = copy._reconstruct(tensor, None, *tensor.__reduce_ex__(4))  # type: ignore[attr-defined]
        mark(made, tensor._dsexplore_cuda_device)  # type: ignore[attr-defined]
        return made

    patches.attribute(Tensor, "__copy__", copied)
    patches.attribute(DTensor, "__init__", _with_marked_part(DTensor.__init__))
    patches.attribute(Tensor, "_make_subclass", staticmethod(make_subclass))
    patches.attribute(Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
    for dtype, name in _LEGACY.items():
        patches.attribute(torch.cuda, name, _legacy(name, dtype))
    # torch reads the arguments before a mode sees the call, and our streams are none to it.
    patches.attribute(Tensor, "record_stream", lambda tensor, stream: None)


def _with_marked_part(original: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` of DTensors that puts the local tensor where the DTensor is; what C++ makes does not call it."""

    @wraps(original)
    def begin(tensor: DTensor, *args: Any, **kwargs: Any) -> None:
        original(tensor, *args, **kwargs)
        mark_parts(tensor, device_of(tensor, torch.cuda.current_device()))

    return begin


_LEGACY = dict(
    (
        *((torch.float64, "DoubleTensor"), (torch.float32, "FloatTensor"), (torch.float16, "HalfTensor")),
        *((torch.bfloat16, "BFloat16Tensor"), (torch.int64, "LongTensor"), (torch.int32, "IntTensor")),
        *((torch.int16, "ShortTensor"), (torch.int8, "CharTensor"), (torch.uint8, "ByteTensor")),
        (torch.bool, "BoolTensor"),
    )
)


class _LegacyType(type):
    """``torch.cuda.FloatTensor`` and its kin: classes only in what can be asked of them."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Tensor:
        made: Tensor = getattr(torch, cls.__name__)(*args).cuda()
        return made

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def _legacy(name: str, dtype: torch.dtype) -> type:
    return _LegacyType(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})


def patch_fake_tensors(patches: Patches, mode: StandInMode) -> None:
    """Make fake tensors answer scripts where they are believed to be, and the fake mode itself where they are.

    ``FakeTensor.device`` is a property that no function mode sees; and in backward C++ calls the fake mode while the
    function mode is entered.
    """
    device = FakeTensor.device
    assert isinstance(device, property)
    read: Callable[[Any], torch.device] = device.fget

    def believed(tensor: Any) -> torch.device:
        where: torch.device | None = tensor._dsexplore_cuda_device
        if where is None or not torch._C._is_torch_function_mode_enabled():
            return read(tensor)
        return where if mode in _get_current_function_mode_stack() else read(tensor)

    def build(dispatch: Callable[..., Any]) -> Callable[..., Any]:
        def without_function_modes(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return dispatch(*args, **kwargs)

        return without_function_modes

    patches.attribute(FakeTensor, "device", property(believed))
    patches.attribute(FakeTensorMode, "dispatch", build(FakeTensorMode.dispatch))


def patch_from_local(patches: Patches, mode: StandInMode) -> None:
    """Make ``DTensor.from_local`` find plain tensors where they are believed to be, also where torch has the mode off.

    ``from_local`` moves them to the device of the mesh. A function of torch calls it with the mode off:
    ``cross_entropy`` of logits under ``loss_parallel``, for the targets.
    """
    original: Callable[..., DTensor] = DTensor.from_local

    @wraps(original)
    def from_local(*args: Any, **kwargs: Any) -> DTensor:
        if mode in _get_current_function_mode_stack():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    patches.attribute(DTensor, "from_local", staticmethod(from_local))


def patch_checkpoint(patches: Patches) -> None:
    """Make ``torch.utils.checkpoint`` compare where tensors truly are: forward packs them below the mode."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def metadata(tensor: Tensor) -> Any:
            with torch._C.DisableTorchFunction():
                return original(tensor)

        return metadata

    patches.function(checkpoint._default_meta_extractor, build)


def patch_groups_by_device(patches: Patches, mode: StandInMode) -> None:
    """Make torch group tensors by where they are believed to be, as for norms of gradients: C++ tells it that all are
    on the CPU."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def grouped(lists: Sequence[Sequence[Any]], with_indices: bool = False) -> dict[Any, tuple[list[Any], Any]]:
            found: dict[Any, tuple[list[Any], list[int]]] = {}
            for (device, dtype), (parts, indices) in original(lists, with_indices).items():
                for place, tensor in enumerate(parts[0]):
                    where = mode.believed(tensor) or device
                    those, places = found.setdefault((where, dtype), ([[] for _ in parts], []))
                    for kept, part in zip(those, parts, strict=True):
                        kept += part[place : place + 1]  # a list without tensors stays empty
                    places += indices[place : place + 1]
            return found

        return grouped

    patches.function(_foreach_utils._group_tensors_by_device_and_dtype, build)


def patch_saved_tensors(patches: Patches) -> None:
    """Make ``save_on_cpu`` pin nothing: autograd calls what it does with each tensor below the mode."""
    original: Callable[..., None] = save_on_cpu.__init__

    @wraps(original)
    def begin(hooks: save_on_cpu, pin_memory: bool = False, device_type: str = "cuda") -> None:
        original(hooks, False, device_type)

    patches.attribute(save_on_cpu, "__init__", begin)
