"""`ShortKeyMode`: torch's mode of fake tensors, which looks up what an op returned with fewer steps.

torch keeps what an op returned under a key that describes its arguments, in a cache that all modes share. Making the
key, and a tensor of what is kept, is most of what a step on fake tensors takes. Without symbolic sizes a short key says
as much, and a tensor takes fewer steps. What is kept, and of which ops, is torch's to say. A version of torch that
makes its keys elsewhere keeps nothing under short ones: results are the same then, and take longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from dsexplore._internal.torch_internals.dispatch import (
    eval_frame_callback,
    no_torch_dispatch,
)
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
    """Ops such as ``flex_attention`` and ``cond`` come to `dispatch`: torch looks for what `FakeTensorMode` does with
    them by the very type of the mode that is active."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `__torch_dispatch__` does so where it is needed

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Handle every op; half of them are autograd's, which asks each of its nodes for a device."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        if eval_frame_callback() is not None:  # compiled code runs: the compiler is to leave the mode alone
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        with no_torch_function():
            return self.dispatch(func, types, args, kwargs or {})

    def key_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
        """Return all by which a call differs from others; None where it has something that is not known here."""
        key: list[object] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if FakeTensor not in map(type, args):
            key.append(default_device())  # dear, and asked by functions that take no tensor alone
        if not self._append(key, args):
            return None
        key += kwargs
        return tuple(key) if self._append(key, kwargs.values()) else None

    def _append(self, key: list[object], args: Iterable[Any]) -> bool:
        """Append arguments to a key; return False where one of them is not known."""
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
                key += (kind, arg)  # 1 and 1.0 are equal, but what they return is not
            elif kind in (list, tuple, torch.Size):
                key += (kind, len(arg))
                if not self._append(key, arg):
                    return False
            elif kind is torch.device and (arg.index is not None or arg.type in ("cpu", "meta")):
                key.append(arg)  # without an index it is the current one
            else:
                return False
        return True

    def is_plain(self, tensor: FakeTensor) -> bool:
        """Return True for a fake tensor of this mode that its sizes and strides describe."""
        return (
            tensor.fake_mode is self
            and tensor.constant is None
            and tensor.layout is torch.strided
            and not has_symbolic_sizes(tensor)
        )

    def _cache_key(self, *given: Any) -> Any:
        key = self.key_of(*given[1:]) if len(given) == 4 else None
        return super()._cache_key(*given) if key is None else key

    def kept_under(self, key: Key) -> Any:
        """Return torch's cache entry for the call with that key, for `result_of`; None if there is none."""
        kept: Any = self.cache.get(key)  # type: ignore[call-overload] # a key of ours
        infos = getattr(kept, "output_infos", None)  # torch keeps also that it can keep nothing
        if infos is None or any(info.metadata and (info.metadata.is_conj or info.metadata.is_neg) for info in infos):
            return None
        return kept

    def result_of(self, kept: Any, args: Sequence[Any]) -> Any:
        """Return the result of a call with those arguments, by what is kept of an earlier one."""
        results = [self._output(info, args) for info in kept.output_infos]
        return tuple(results) if kept.is_output_tuple else results[0]

    def _output(self, info: Any, args: Sequence[Any]) -> Any:
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
        """Return the fake tensor on a device that has the shape and the memory of a meta tensor.

        The first one on a device is made by torch. Others get its attributes; none depends on the shape.
        """
        attributes = self._attributes.get(device)
        if attributes is None:
            made: Any = FakeTensor(self, meta, device)
            self._attributes[device] = dict(vars(made))
            return made
        made = _make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        vars(made).update(attributes)
        return made

    def as_meta(self) -> AbstractContextManager[None]:
        """Return a context in which ops take fake tensors for meta tensors."""
        context: AbstractContextManager[None] = _as_meta(self)
        return context

    def call_higher_order(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an op that calls functions, as `FakeTensorMode` gets it."""
        if func in internal("torch._higher_order_ops.utils:registered_hop_fake_fns"):
            return super().dispatch(func, (), args, kwargs)
        rule: Any = func.python_key_table.get(FakeTensorMode)
        return rule(self, *args, **kwargs) if rule is not None else NotImplemented
