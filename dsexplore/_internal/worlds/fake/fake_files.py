"""Copies, pickles and files of fake tensors, which have no values to copy.

In torch 2.13, ``copy.deepcopy`` fails on a fake tensor because it reads its address, and a pickle fails because the
tensor holds its mode. So a ``TransformerEncoder``, an averaged model or a checkpoint ends the program. Here

* a copy is a clone, with the attributes that the program has set on the tensor;
* ``torch.save`` and ``save_file`` of safetensors write a sparse file of the same size, with a hole in place of the
  values; ``torch.load`` reads it as fake tensors;
* ``torch.from_file`` maps a file of the program as a real tensor;
* ``dcp.async_save`` returns when the checkpoint is written: two threads cannot share one fake tensor mode;
* other pickles, such as objects sent to other ranks, contain shape, dtype and device.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch.serialization import skip_data

from dsexplore._internal.torch_internals import checkpoint
from dsexplore._internal.torch_internals.fake_tensors import (
    FAKE_DEEPCOPY,
    FAKE_REDUCE,
    FakeTensor,
    active_fake_mode,
    without_fake_mode,
)
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.tensors import storage_number
from dsexplore._internal.worlds.fake.fake_dispatch import entered
from dsexplore._internal.worlds.fake.fake_workarounds import outside_fake_mode
from dsexplore._internal.worlds.remarks import Remarks

_CHUNK = 1 << 20
"""Bytes of zeros to write at once."""
WRITTEN = "a file of fake tensors has their shapes and its full size, but no values: only fake tensors can load it"
PICKLED = "fake tensors were pickled without values, so objects that contain them are smaller than on the target"


def _deepcopy(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    """Copy a fake tensor, with its gradient and the attributes that the program has set."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        return torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call] # torch refuses
    copied: Any = tensor.detach().clone()
    memo[id(tensor)] = copied
    missing = {name: value for name, value in vars(tensor).items() if name not in vars(copied)}
    vars(copied).update(copy.deepcopy(missing, memo))  # the program's, and the mark of a parameter
    copied.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    return copied


def _stage_tensor(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap the staging of ``dcp.async_save`` to clone a fake tensor instead of copying memory."""

    @wraps(original)
    def offload(stager: Any, /, x: torch.Tensor, memo: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
        if type(x) is not FakeTensor:
            return original(stager, x, memo, *args, **kwargs)
        memo[id(x)] = x.detach().clone()
        return memo[id(x)]

    return offload


def _write_and_wait(original: Callable[..., Future[Any]], _parts: Parts) -> Callable[..., Future[Any]]:
    """Wrap ``execute_save`` to wait for the writing thread; its errors stay in the future."""

    @wraps(original)
    def execute_save(*args: Any, **kwargs: Any) -> Future[Any]:
        future = original(*args, **kwargs)
        wait([future])
        return future

    return execute_save


def _restore_location(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap ``torch.load``'s location of a storage: fake tensors are on the CPU if ``map_location`` is a function."""

    def restore_location(device: Any) -> Any:
        return torch.device("cpu") if checkpoint.is_loading_by_function() else original(device)

    return restore_location


def _reduce(_original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace ``__reduce_ex__`` of a fake tensor, to pickle a description of it outside ``torch.save``."""

    def reduce(tensor: FakeTensor, proto: int) -> Any:
        if checkpoint.is_saving_fake_tensors():
            return torch.Tensor.__reduce_ex__(tensor, proto)  # type: ignore[no-untyped-call] # torch types none of it
        parts[Remarks].say(PICKLED)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        description = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
        return _rebuild, (*description, is_parameter)

    return reduce


def _rebuild(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """Return a tensor like the pickled one; outside a world of fake tensors, it is on ``meta``."""
    mode = entered()
    with mode or nullcontext():
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device if mode is not None else "meta")
        return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _save_without_values(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``torch.save`` to write holes in place of the values of fake tensors."""
    parameters = signature(original)

    def save(*args: Any, **kwargs: Any) -> None:
        mode = active_fake_mode()
        if mode is None and threading.current_thread() is not threading.main_thread():
            mode = entered()  # a mode belongs to a thread, and ``dcp.async_save`` writes in another one
        if mode is None:
            return original(*args, **kwargs)
        parts[Remarks].say(WRITTEN)
        bound = parameters.bind(*args, **kwargs)
        if hasattr(bound.arguments["f"], "write"):
            bound.arguments["f"] = _WithHoles(bound.arguments["f"])
        with mode, skip_data(materialize_fake_tensors=True):
            return original(*bound.args, **bound.kwargs)

    return save


class _WithHoles:
    """A stream in which torch skips values by seeking forward, even if the underlying stream cannot seek."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write, self.flush = stream.write, getattr(stream, "flush", lambda: None)

    def seek(self, size: int, whence: int = os.SEEK_CUR) -> None:
        """Skip `size` bytes forward; write zeros if the stream can only write."""
        # A wrapper that does not close its file, as that of distributed checkpoints, has it as ``raw``.
        for stream in (self._stream, getattr(self._stream, "raw", None)):
            if stream is not None and stream.seekable():
                stream.seek(size, whence)
                return
        for start in range(0, size, _CHUNK):
            self.write(bytes(min(_CHUNK, size - start)))


def _set_rng_state(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Wrap ``torch.set_rng_state`` to ignore a fake state."""
    parameters = signature(original)

    def set_rng_state(*args: Any, **kwargs: Any) -> None:
        state = parameters.bind(*args, **kwargs).arguments["new_state"]
        if not isinstance(state, FakeTensor):  # a fake state has no values, and no op draws any
            original(*args, **kwargs)

    return set_rng_state


def _read_storage(original: Callable[..., torch.Tensor], _parts: Parts) -> Callable[..., torch.Tensor]:
    """Wrap ``torch.asarray`` to read a storage outside the fake mode, which would treat it as numbers."""

    def asarray(obj: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
            return original(obj, *args, **kwargs)
        with without_fake_mode():
            return original(obj, *args, **kwargs)

    return asarray


def _save_safetensors(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap ``save_file`` of safetensors to write a hole in place of the values of fake tensors."""
    parameters = signature(original)

    def save_file(*args: Any, **kwargs: Any) -> None:
        arguments = parameters.bind(*args, **kwargs).arguments
        tensors = arguments["tensors"]
        if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
            parts[Remarks].say(WRITTEN)
            _write_safetensors(tensors, arguments["filename"], arguments.get("metadata"))
        else:
            original(*args, **kwargs)

    return save_file


def _load_safetensors(
    original: Callable[..., dict[str, torch.Tensor]], _parts: Parts
) -> Callable[..., dict[str, torch.Tensor]]:
    """Wrap ``load_file`` to load to the CPU first, as the original writes to the address of a GPU tensor."""
    parameters = signature(original)

    def load_file(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        arguments = parameters.bind(*args, **kwargs).arguments
        device = arguments.get("device", "cpu")
        if active_fake_mode() is None:
            return original(*args, **kwargs)
        loaded = original(**{**arguments, "device": "cpu"})
        return {name: tensor.to(device) for name, tensor in loaded.items()}

    return load_file


def _identify_storage(original: Callable[..., int], _parts: Parts) -> Callable[..., int]:
    """Wrap the function by which safetensors finds tied weights, to return a number in place of an address."""

    def storage_ptr(tensor: torch.Tensor) -> int:
        return storage_number(tensor.untyped_storage()) if isinstance(tensor, FakeTensor) else original(tensor)

    return storage_ptr


def _is_whole_storage(original: Callable[..., bool], _parts: Parts) -> Callable[..., bool]:
    """Wrap a function to check without addresses whether a tensor covers its storage."""

    def is_complete(tensor: torch.Tensor) -> bool:
        if not isinstance(tensor, FakeTensor):
            return original(tensor)
        size = tensor.numel() * tensor.element_size()
        return tensor.storage_offset() == 0 and size == tensor.untyped_storage().nbytes()

    return is_complete


def _write_safetensors(
    tensors: Mapping[str, torch.Tensor],
    file: str | os.PathLike[str],
    metadata: Mapping[str, str] | None,
) -> None:
    """Write the header of a safetensors file, with a hole in place of the values."""
    names = checkpoint.safetensors_names()
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0])):
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:  # noqa: PTH123 - files of one rank are watched where they are opened
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + end)


def _outside_fake_mode(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap a function of torch to run outside the fake tensor mode."""
    return outside_fake_mode(original)


PATCHES: tuple[Entry, ...] = (
    Patch(FAKE_DEEPCOPY, "it reads an address", lambda _original, _parts: _deepcopy, when="fake"),
    Patch(FAKE_REDUCE, "it pickles the mode", _reduce, when="fake"),
    Patch(checkpoint.SAVE, "it reads memory", _save_without_values, when="fake", by_code=True),
    Patch(
        checkpoint.RESTORE_LOCATION,
        "it calls a function of the program with a fake tensor in place of a storage",
        _restore_location,
        when="fake",
        by_code=True,
    ),
    Patch(checkpoint.SET_RNG_STATE, "it reads a state without values", _set_rng_state, when="fake", by_code=True),
    Patch(checkpoint.STAGE_TENSOR, "it copies memory", _stage_tensor, when="fake", on_import=True),
    Patch(
        checkpoint.WRITE_IN_THREAD,
        "two threads cannot use one fake mode at a time",
        _write_and_wait,
        when="fake",
        on_import=True,
    ),
    Patch(checkpoint.FROM_STORAGE, "the fake mode treats a storage as numbers", _read_storage, when="fake"),
    Patch(checkpoint.FROM_FILE, "the fake mode returns a tensor without values", _outside_fake_mode, when="fake"),
    Patch(checkpoint.SAFETENSORS_SAVE, "it reads memory", _save_safetensors, when="fake", by_code=True),
    Patch(checkpoint.SAFETENSORS_LOAD, "it writes to addresses", _load_safetensors, when="fake", by_code=True),
    Patch(
        checkpoint.SAFETENSORS_STORAGE, "it tells memory apart by address", _identify_storage, when="fake", by_code=True
    ),
    Patch(checkpoint.SAFETENSORS_IS_WHOLE, "it compares addresses", _is_whole_storage, when="fake", by_code=True),
)
