"""Copies, pickles and files of fake tensors, which have no values to copy.

Measured on torch 2.13, a fake tensor cannot be copied by ``copy.deepcopy``, which reads its address, and cannot be
pickled, as it holds its mode; so a ``TransformerEncoder``, an averaged model or a checkpoint ends the program. Here

* a copy is a clone, with what the program has put on the tensor;
* ``torch.save`` writes a file of the same size whose values are a hole, which takes no space on the disk, and which
  ``torch.load`` reads on fake tensors; so does ``save_file`` of safetensors;
* ``torch.from_file`` maps a file of the program's data, which is read as it is;
* ``dcp.async_save`` returns once the checkpoint is written: two threads cannot use one mode of fake tensors at a time;
* what is pickled otherwise, as objects sent to other ranks are, has shape, type and device.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import serialization
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.checkpoint._async_thread_executor import _ThreadBasedAsyncCheckpointExecutor as Writer
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.serialization import skip_data

from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.fake_dispatch import entered
from dsexplore.worlds.fake.fake_tensors import outside_fake_mode
from dsexplore.worlds.remarks import Remarks

_CHUNK = 1 << 20
WRITTEN = "a file of fake tensors has their shapes and its size, and no values: it is of use on fake tensors alone"
PICKLED = "fake tensors were pickled without values, so objects that hold them are smaller than on the target"


def patch_files(patches: Patches, remarks: Remarks) -> None:
    """Make fake tensors of a program be copied, pickled, saved and loaded."""
    patches.attribute(FakeTensor, "__deepcopy__", _copied)
    patches.attribute(FakeTensor, "__reduce_ex__", _pickled(remarks))
    patches.function(torch.save, partial(_without_values, remarks))
    patches.function(torch._utils._get_restore_location, _location)
    patches.function(torch.set_rng_state, _take_rng_state)
    patches.attribute(StateDictStager, "_offload_tensor", _offloaded(StateDictStager._offload_tensor))
    patches.attribute(Writer, "execute_save", _finished(Writer.execute_save))
    patches.attribute(torch, "asarray", _of_storage(torch.asarray))
    patches.attribute(torch, "from_file", outside_fake_mode(torch.from_file))
    on_import(patches, "safetensors.torch", partial(_patch_safetensors, remarks, patches))


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        return torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call] # torch refuses
    made: Any = tensor.detach().clone()
    memo[id(tensor)] = made
    missing = {name: value for name, value in vars(tensor).items() if name not in vars(made)}
    vars(made).update(copy.deepcopy(missing, memo))  # the program's own; that it is a parameter is one of them
    made.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    return made


def _offloaded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a fake tensor for ``dcp.async_save`` without copying its memory."""

    @wraps(original)
    def offload(stager: Any, /, x: torch.Tensor, memo: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
        if type(x) is not FakeTensor:
            return original(stager, x, memo, *args, **kwargs)
        memo[id(x)] = x.detach().clone()
        return memo[id(x)]

    return offload


def _finished(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """``execute_save`` of ``dcp.async_save`` that waits for the thread that writes; its errors stay in the future."""

    @wraps(original)
    def execute_save(*args: Any, **kwargs: Any) -> Future[Any]:
        written = original(*args, **kwargs)
        wait([written])
        return written

    return execute_save


def _location(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where ``torch.load`` puts a fake tensor: on the CPU where a function of the program would move its storage."""

    def location(device: Any) -> Any:
        return torch.device("cpu") if callable(serialization._serialization_tls.map_location) else original(device)

    return location


def _pickled(remarks: Remarks) -> Callable[..., Any]:
    reduce: Callable[..., Any] = torch.Tensor.__reduce_ex__

    def reduced(tensor: FakeTensor, proto: int) -> Any:
        if serialization._serialization_tls.materialize_fake_tensors:  # torch.save
            return reduce(tensor, proto)
        remarks.say(PICKLED)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        described = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
        return _made, (*described, is_parameter)

    return reduced


def _made(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """A tensor as it was described when a fake one was pickled; on ``meta`` where no world of fake tensors is open."""
    mode = entered()
    with mode or nullcontext():
        made = torch.empty_strided(shape, stride, dtype=dtype, device=device if mode is not None else "meta")
        return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _without_values(remarks: Remarks, original: Callable[..., None]) -> Callable[..., None]:
    parameters = signature(original)

    def save(*args: Any, **kwargs: Any) -> None:
        mode = active_fake_mode()
        if mode is None and threading.current_thread() is not threading.main_thread():
            mode = entered()  # modes belong to a thread, and ``dcp.async_save`` writes in another
        if mode is None:
            return original(*args, **kwargs)
        remarks.say(WRITTEN)
        given = parameters.bind(*args, **kwargs)
        if hasattr(given.arguments["f"], "write"):
            given.arguments["f"] = _WithHoles(given.arguments["f"])
        with mode, skip_data(materialize_fake_tensors=True):
            return original(*given.args, **given.kwargs)

    return save


class _WithHoles:
    """A stream in which torch leaves out values by seeking forward, whether it can seek or not."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write, self.flush = stream.write, getattr(stream, "flush", lambda: None)

    def seek(self, size: int, whence: int = os.SEEK_CUR) -> None:
        """Go forward by that many bytes, on zeros where the stream only writes."""
        # Wrappers that do not close a file, as those of distributed checkpoints, hold it as ``raw``.
        for stream in (self._stream, getattr(self._stream, "raw", None)):
            if stream is not None and stream.seekable():
                stream.seek(size, whence)
                return
        for start in range(0, size, _CHUNK):
            self.write(bytes(min(_CHUNK, size - start)))


def _take_rng_state(original: Callable[..., None]) -> Callable[..., None]:
    parameters = signature(original)

    def set_rng_state(*args: Any, **kwargs: Any) -> None:
        state = parameters.bind(*args, **kwargs).arguments["new_state"]
        if not isinstance(state, FakeTensor):  # one that was loaded has no values, and nothing draws any
            original(*args, **kwargs)

    return set_rng_state


def _of_storage(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.asarray`` of a storage, as safetensors calls it on a file: the mode takes storages for numbers."""

    def asarray(obj: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
            return original(obj, *args, **kwargs)
        with unset_fake_temporarily():
            return original(obj, *args, **kwargs)

    return asarray


def _patch_safetensors(remarks: Remarks, patches: Patches, module: ModuleType) -> None:
    names = {dtype: name for name, dtype in vars(module)["_TYPES"].items()}

    def build(original: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(original)

        def save_file(*args: Any, **kwargs: Any) -> None:
            given = parameters.bind(*args, **kwargs).arguments
            tensors = given["tensors"]
            if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
                remarks.say(WRITTEN)
                _write_safetensors(tensors, given["filename"], given.get("metadata"), names)
            else:
                original(*args, **kwargs)

        return save_file

    patches.function(vars(module)["save_file"], build)
    patches.function(vars(module)["load_file"], _by_way_of_the_cpu)
    patches.function(vars(module)["storage_ptr"], _storage_number)
    patches.function(vars(module)["_is_complete"], _covers_its_storage)


def _by_way_of_the_cpu(original: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    """``load_file`` to a GPU writes to the address of tensors that it makes there, which fake ones do not have."""
    parameters = signature(original)

    def load_file(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        given = parameters.bind(*args, **kwargs).arguments
        device = given.get("device", "cpu")
        if active_fake_mode() is None:
            return original(*args, **kwargs)
        loaded = original(**{**given, "device": "cpu"})
        return {name: tensor.to(device) for name, tensor in loaded.items()}

    return load_file


def _storage_number(original: Callable[..., int]) -> Callable[..., int]:
    """The number of a tensor's storage, another for each: tied weights are found by it."""

    def storage_ptr(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata if isinstance(tensor, FakeTensor) else original(tensor)

    return storage_ptr


def _covers_its_storage(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether a tensor is all of its storage, which safetensors finds by addresses."""

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
    names: Mapping[torch.dtype, str],
) -> None:
    """Write the header of a file of safetensors, and leave a hole where the values would be."""
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
