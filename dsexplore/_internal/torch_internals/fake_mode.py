"""`ShortKeyMode`: torch's mode of fake tensors with a faster lookup of cached results.

torch caches the metadata of an op's results, in a cache that all modes share, under a key that describes the arguments.
Most of the time of a step on fake tensors goes into making the key, and a tensor from the metadata. Without symbolic
sizes, a short key distinguishes calls as well, and a tensor can be made in fewer steps. torch still decides which ops
are cached and what is stored. If a version of torch makes its keys elsewhere, nothing is found under short keys:
results are the same, and take longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from dsexplore._internal.torch_internals.dispatch import eval_frame_callback, no_torch_dispatch
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, FakeTensorMode, has_symbolic_sizes
from dsexplore._internal.torch_internals.function_modes import default_device
from dsexplore._internal.torch_internals.names import internal
from dsexplore._internal.torch_internals.tensors import no_torch_function

Key = tuple[object, ...]

_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format})
_make_subclass = internal("torch:Tensor._make_subclass")
_as_meta = internal("torch._subclasses.fake_tensor:in_kernel_invocation_manager")


class ShortKeyMode(FakeTensorMode):
    """A `FakeTensorMode` for programs without symbolic sizes."""

    supports_higher_order_operators = True
    """True so that `dispatch` gets ops such as ``flex_attention`` and ``cond``: torch finds their implementation by the
    exact type of the active mode, which must be `FakeTensorMode`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `__torch_dispatch__` keeps the compiler away

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Handle every op; half of them are questions of autograd for the device of a node's tensor."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        if eval_frame_callback() is not None:  # compiled code runs; torch's own method keeps the compiler away
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        with no_torch_function():
            return self.dispatch(func, types, args, kwargs or {})

    def key_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
        """Return the key of a call; None if it has an argument of an unknown kind."""
        key: list[object] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if FakeTensor not in map(type, args):
            key.append(default_device())  # slow, and only functions without a tensor argument use it
        if not self._append(key, args):
            return None
        key += kwargs
        return tuple(key) if self._append(key, kwargs.values()) else None

    def _append(self, key: list[object], args: Iterable[Any]) -> bool:
        """Append arguments to a key; return False if one of them is of an unknown kind."""
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:
                if not self.is_plain(arg):
                    return False
                key += (
                    arg.dtype,
                    arg.shape,
                    arg.stride(),
                    arg.fake_device,
                    arg.storage_offset(),
                    arg.untyped_storage().nbytes(),
                    arg.requires_grad,
                    arg.is_conj(),
                    arg.is_neg(),
                    arg.is_inference(),
                )
            elif kind in _PLAIN:
                key += (kind, arg)  # 1 and 1.0 are equal, but give results of other dtypes
            elif kind in (list, tuple, torch.Size):
                key += (kind, len(arg))
                if not self._append(key, arg):
                    return False
            elif kind is torch.device and (arg.index is not None or arg.type in ("cpu", "meta")):
                key.append(arg)  # without an index, it would be the current device
            else:
                return False
        return True

    def is_plain(self, tensor: FakeTensor) -> bool:
        """Return True for a strided fake tensor of this mode without a constant and without symbolic sizes."""
        return (
            tensor.fake_mode is self
            and tensor.constant is None
            and tensor.layout is torch.strided
            and not has_symbolic_sizes(tensor)
        )

    def _cache_key(self, *arguments: Any) -> Any:
        """Return the short key for torch's cache, or torch's own: ``(state, func, args, kwargs)``."""
        key = self.key_of(*arguments[1:]) if len(arguments) == 4 else None
        return super()._cache_key(*arguments) if key is None else key

    def cache_entry(self, key: Key) -> Any:
        """Return torch's cache entry for the call with that key, for `result_of`; None if there is none."""
        entry: Any = self.cache.get(key)  # type: ignore[call-overload] # a short key
        infos = getattr(entry, "output_infos", None)  # the entry of an op that torch cannot cache has none
        if infos is None or any(info.metadata and (info.metadata.is_conj or info.metadata.is_neg) for info in infos):
            return None
        return entry

    def result_of(self, entry: Any, args: Sequence[Any]) -> Any:
        """Return the result of a call with these arguments, from the cache entry of an equal call."""
        results = [self._output(info, args) for info in entry.output_infos]
        return tuple(results) if entry.is_output_tuple else results[0]

    def _output(self, info: Any, args: Sequence[Any]) -> Any:
        """Return one result: an argument written in place, a constant, a view of an argument, or a new tensor."""
        if info.inplace_idx is not None:
            return args[info.inplace_idx]
        metadata = info.metadata
        if metadata is None:
            return info.constant_value
        with no_torch_dispatch():
            meta = torch.empty_strided(
                metadata.shape,
                metadata.stride,
                dtype=metadata.dtype,
                layout=metadata.layout,
                device=_META,
                requires_grad=metadata.requires_grad,
            )
            if info.view_idx is not None:
                storage = args[info.view_idx].untyped_storage()
                meta.set_(storage, metadata.storage_offset, metadata.shape, metadata.stride)
        return self.fake_tensor(meta, metadata.device)

    def fake_tensor(self, meta: torch.Tensor, device: torch.device) -> Any:
        """Return a fake tensor on a device with the shape and the storage of a meta tensor.

        torch makes the first one on a device. Further ones get its attributes, because none depends on the shape.
        """
        attributes = self._attributes.get(device)
        if attributes is None:
            tensor: Any = FakeTensor(self, meta, device)
            self._attributes[device] = dict(vars(tensor))
            return tensor
        tensor = _make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        vars(tensor).update(attributes)
        return tensor

    def as_meta(self) -> AbstractContextManager[None]:
        """Return a context in which ops treat fake tensors as meta tensors."""
        context: AbstractContextManager[None] = _as_meta(self)
        return context

    def call_higher_order(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a higher-order op, as `FakeTensorMode` computes it."""
        if func in internal("torch._higher_order_ops.utils:registered_hop_fake_fns"):
            return super().dispatch(func, (), args, kwargs)
        rule: Any = func.python_key_table.get(FakeTensorMode)
        return rule(self, *args, **kwargs) if rule is not None else NotImplemented
