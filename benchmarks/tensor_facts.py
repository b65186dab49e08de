"""What a program can see of a tensor, and where two such differ; `ops_beside_cpu` compares calls by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

Facts = dict[str, Any]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def facts_of_tensor(tensor: Tensor, inputs: list[Tensor], made: list[Tensor], keep_values: bool) -> Facts:
    """Return what a program can see of a tensor."""
    facts: Facts = {
        "class": type(tensor).__name__,
        "device": str(tensor.device),
        "is_cuda": tensor.is_cuda,
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is the input": [number for number, other in enumerate(inputs) if tensor is other],
        "is the result": [number for number, other in enumerate(made) if tensor is other],
        "to its device": tensor.to(tensor.device) is tensor,
        "to its dtype": tensor.to(tensor.dtype) is tensor,
        "to itself": tensor.to(tensor) is tensor,
    }
    if isinstance(tensor, DTensor):
        facts["placements"] = str(tensor.placements)
        facts["stride"] = tensor.stride()
        facts["local"] = facts_of_tensor(tensor._local_tensor, local_tensors(inputs), local_tensors(made), keep_values)
        return facts
    if has_memory(tensor):
        facts["stride"], facts["offset"] = tensor.stride(), tensor.storage_offset()
        facts["is_contiguous"] = tensor.is_contiguous()
        facts["conj and neg"] = tensor.is_conj(), tensor.is_neg()
        facts["is a view"] = tensor._is_view()
        facts["shares memory with"] = [
            [number for number, other in enumerate(others) if has_memory(other) and share_memory(tensor, other)]
            for others in (inputs, made)
        ]
        facts["place in memory"] = place_in_memory(tensor)
        facts["detached"] = share_memory(tensor, tensor.detach())
    if keep_values and tensor.device.type != "meta" and not isinstance(tensor, FakeTensor):
        facts["values"] = [part.detach().clone() for part in parts_of(tensor)]
    return facts


def has_memory(tensor: Tensor) -> bool:
    """Return True for a tensor that is no DTensor, sparse, nested or jagged one, which hold other tensors."""
    if isinstance(tensor, DTensor) or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    try:
        tensor.untyped_storage().nbytes()
        return isinstance(tensor, FakeTensor) or tensor.untyped_storage().data_ptr() >= 0
    except RuntimeError:
        return False


def parts_of(tensor: Tensor) -> Iterable[Tensor]:
    """Return the dense tensors that a tensor holds; of most it is itself."""
    if tensor.is_nested:
        return tensor.unbind()
    return (tensor if tensor.layout is torch.strided else tensor.to_dense(),)


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the local tensors of DTensors."""
    return [tensor._local_tensor for tensor in tensors if isinstance(tensor, DTensor)]


def place_in_memory(tensor: Tensor) -> int | None:
    """Return how many bytes behind the beginning of its memory a tensor begins; None where it has none."""
    if not tensor.numel() or isinstance(tensor, FakeTensor):
        return None
    return tensor.data_ptr() - tensor.untyped_storage().data_ptr()


def share_memory(tensor: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same memory, which is not empty."""
    memory, other_memory = tensor.untyped_storage(), other.untyped_storage()
    if isinstance(tensor, FakeTensor):
        return memory._cdata == other_memory._cdata
    return memory.nbytes() > 0 and memory.data_ptr() == other_memory.data_ptr()


def differences(cpu: Any, gpu: Any, path: str = "") -> Iterator[str]:
    """Yield where two calls differ; ``cpu`` on one side stands for ``cuda:0`` on the other."""
    if isinstance(cpu, dict) and isinstance(gpu, dict):
        if "raises" in cpu or "raises" in gpu:
            if cpu.get("raises") != gpu.get("raises"):
                yield f"{path}: {cpu.get('raises')} on the CPU, {gpu.get('raises')}: {gpu.get('text')}"
            return
        for key in (cpu.keys() | gpu.keys()) - {"draws"}:
            yield from differences(cpu.get(key), gpu.get(key), f"{path}/{key}")
    elif path.endswith("/device"):
        if {"cpu": "cuda:0"}.get(cpu, cpu) != gpu:
            yield f"{path}: {cpu}, {gpu}"
    elif path.endswith("/is_cuda"):
        if cpu or not gpu:
            yield f"{path}: {cpu}, {gpu}"
    elif isinstance(cpu, Tensor) and isinstance(gpu, Tensor):
        if cpu.shape != gpu.shape or not torch.allclose(cpu, gpu, rtol=0, atol=0, equal_nan=True):
            yield f"{path}: {cpu.flatten()[:4].tolist()}, {gpu.flatten()[:4].tolist()}"
    elif isinstance(cpu, list) and isinstance(gpu, list) and len(cpu) == len(gpu):
        for number, pair in enumerate(zip(cpu, gpu, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif cpu != gpu:
        yield f"{path}: {cpu}, {gpu}"
