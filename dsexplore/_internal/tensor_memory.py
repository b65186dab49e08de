"""`storage_of`: the storage of a tensor that has memory for each element; code that passes addresses calls it first."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.errors import UsageError


def storage_of(tensor: Any) -> Any:
    """Return the storage of a tensor that has memory for each of its elements.

    Raises:
        UsageError: the tensor has no such memory: it is on the meta device, fake, sparse, or a wrapper of other
            tensors (a DTensor, a nested tensor, a tensor of `torch.func`), or FSDP has freed its storage.
        TypeError: the object is not a tensor.
    """
    kind = type(tensor).__name__
    if not hasattr(tensor, "untyped_storage") or not hasattr(tensor, "is_meta"):
        raise TypeError(f"{kind} is not a tensor: pass a torch.Tensor")
    if hasattr(tensor, "to_local"):
        raise UsageError(f"{described(tensor)} is a {kind}, which has no memory of its own: pass its .to_local()")
    if tensor.is_meta:
        raise UsageError(f"{described(tensor)} on the meta device has no memory: use a real device")
    is_fake = readable = False
    try:
        storage = tensor.untyped_storage()
        is_fake = storage.device.type == "meta"
        readable = not tensor.is_nested and not is_fake and (storage.data_ptr() != 0 or not storage.nbytes())
    except (RuntimeError, ValueError, NotImplementedError):  # wrappers, sparse and uninitialized tensors
        pass
    if not readable:
        remedy = "leave the fake tensor mode" if is_fake else "pass the dense tensors that hold its values"
        raise UsageError(f"{described(tensor)} ({kind}, {tensor.layout}) has no memory that can be moved: {remedy}")
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size() if tensor.numel() else 0
    if storage.nbytes() < needed:
        raise UsageError(
            f"{described(tensor)} and {tensor.dtype} needs {needed} bytes, and its storage holds {storage.nbytes()}. "
            "If FSDP freed it, as it frees parameters after use, gather it first (model.unshard(), "
            "FSDP.summon_full_params); if its elements are packed, pass the tensor of bytes that holds them"
        )
    return storage


def described(tensor: Any) -> str:
    """Return a tensor in words for error messages, with its shape if it has one."""
    try:
        return f"a tensor of shape {tuple(tensor.shape)}"
    except (RuntimeError, ValueError):  # a nested tensor, or an uninitialized parameter
        return "a tensor"
