"""`SimulationMode`: torch's `FakeTensorMode`, with less work for each op of a simulated step.

A training step on fake tensors spends its time in the mode, for every op: in building the key under which the
mode caches what an op returns, and, for an op on DTensors, in finding out that it is not the mode's business.
Measured on torch 2.13 with two Llama layers, FSDP2 and tensor parallel, both together are a third of the step.

Results are those of `FakeTensorMode`: same cache, same entries. The keys are put together differently, and what an op
returns is made of its entry with fewer steps, as nothing here has symbolic sizes: a tenth of the time of a pipeline
stage of 8 layers under tensor parallelism and FSDP2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dsexplore.worlds.fake.invented_values import READS, Inventor, note
from dsexplore.worlds.fake.real_integers import RealIntegers

_GROUPED = torch.ops.aten._grouped_mm.default
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


_entered: SimulationMode | None = None


def entered() -> SimulationMode | None:
    """The mode of the world that is open, also where torch has left it for a moment; None where there is none."""
    return _entered


@contextmanager
def fake_mode(inventor: Inventor | None = None) -> Iterator[SimulationMode]:
    """A `SimulationMode` that can be left even if the user's program entered a mode and did not leave it."""
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
        if mode in _get_current_dispatch_mode_stack():
            mode.__exit__(None, None, None)


class SimulationMode(FakeTensorMode):
    """A `FakeTensorMode` for programs of plain fake tensors and DTensors.

    Attributes:
        inventor: invents the values that a program reads.
        integers: tensors that have memory all the same.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inventor = Inventor()
        self.integers = RealIntegers()
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What an op returns on fake tensors; ops on DTensors are DTensor's own to take apart."""
        if DTensor in types:
            return NotImplemented
        kwargs = kwargs or {}
        if not types:
            result = self.integers.run(func, args, kwargs)
            if result is not NotImplemented:
                return result
        read = READS.get(func)
        if read is not None and _needs_invention(args):
            return read(self.inventor, args, kwargs)
        if func is _GROUPED and args[0].dtype != torch.bfloat16:
            return self._grouped(func, types, args, kwargs)
        result = super().dispatch(func, types, args, kwargs)
        note(func, args, kwargs, result)
        return result

    def _grouped(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """A grouped product of another type than bfloat16, which torch's shape function asks for."""
        narrow = [torch.empty_like(arg, dtype=torch.bfloat16) for arg in args[:2]]
        wide: Any = super().dispatch(func, types, (*narrow, *args[2:]), kwargs)
        return torch.empty_like(wide, dtype=kwargs.get("out_dtype") or args[0].dtype)

    def _prep_args_for_hash(self, result: list[object], args: Any, state: Any, id_hashed_objects: list[object]) -> None:
        """Append to ``result`` all by which these arguments differ from others."""
        if type(args) not in (list, tuple):
            super()._prep_args_for_hash(result, args, state, id_hashed_objects)
            return
        result += (type(args), len(args))
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN:
                result += (kind, arg)  # 1 and 1.0 are equal, but what they return is not
            elif kind is FakeTensor and arg.fake_mode is self and _is_plain(arg):
                result.append(_described(arg))
            elif kind is list or kind is tuple:
                self._prep_args_for_hash(result, arg, state, id_hashed_objects)
            else:
                super()._prep_args_for_hash(result, (arg,), state, id_hashed_objects)

    def _get_output_tensor_from_cache_entry(self, state: Any, entry: Any, key: Any, func: Any, args: Any) -> Any:
        """The tensor that a cache entry describes: new, with the attributes that torch gives to those it makes."""
        metadata = entry.metadata
        if entry.inplace_idx is not None or metadata is None or metadata.is_conj or metadata.is_neg:
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        attributes = self._attributes.get(metadata.device)
        if attributes is None:
            made: Any = super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
            self._attributes[metadata.device] = dict(vars(made))
            return made
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(
                metadata.shape,
                metadata.stride,
                dtype=metadata.dtype,
                layout=metadata.layout,
                device="meta",
                requires_grad=metadata.requires_grad,
            )
            if entry.view_idx is not None:
                storage = args[entry.view_idx].untyped_storage()
                empty.set_(storage, metadata.storage_offset, metadata.shape, metadata.stride)
        made = torch.Tensor._make_subclass(
            FakeTensor,
            empty,
            metadata.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=metadata.device,
        )
        if self._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(attributes)
        return made


def _needs_invention(args: Sequence[Any]) -> bool:
    """Whether torch has no value of its own for what is read: it keeps those of small constants."""
    return isinstance(args[0], FakeTensor) and args[0].constant is None


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.constant is None and tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides


def _described(tensor: FakeTensor) -> tuple[object, ...]:
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.fake_device,
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
