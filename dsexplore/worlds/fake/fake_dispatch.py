"""`SimulationMode`: torch's `FakeTensorMode`, with less work for each op of a simulated step.

A training step on fake tensors spends its time in the mode, for every op. Measured on torch 2.13 with a pipeline stage
of 8 Llama layers under tensor parallelism and FSDP2, 138,000 calls reach the mode in a step:

* half of them ask for the device of a tensor, as autograd does for each of its nodes: answered before anything else;
* each call keeps the compiler out, which is needed only where compiled code runs;
* an op on DTensors, or on tensors whose collective is not waited for yet, is not the mode's business, which it takes
  long to find out;
* ops of c10d, of FSDP2 and the profiler are no ops of ATen, so that torch looks at each call from the beginning;
* for the others torch builds the key under which it keeps what an op returned, and makes a tensor of what it kept.

Results are those of `FakeTensorMode`, made of its cache: the mode remembers its entries under keys of its own, which
are put together with fewer steps, as nothing here has symbolic sizes, and makes a tensor of an entry with fewer steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (  # type: ignore[attr-defined] # not all are in its __all__
    FakeTensor,
    FakeTensorMode,
    _BypassDispatchCache,
    _CacheKeyState,
    _DispatchCacheValidEntry,
    disable_fake_tensor_cache,
    in_kernel_invocation_manager,
)
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dsexplore.capture import mode_collectives
from dsexplore.worlds.fake import communicating_ops
from dsexplore.worlds.fake.argument_keys import append_arguments
from dsexplore.worlds.fake.guessed_sizes import READS, packed
from dsexplore.worlds.fake.invented_values import Inventor
from dsexplore.worlds.fake.known_values import set_written
from dsexplore.worlds.fake.own_entries import can_have_entry, entry_of
from dsexplore.worlds.fake.real_integers import RealIntegers
from dsexplore.worlds.fake.value_rules import note

_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")
_PACK = torch.ops.aten._pack_padded_sequence.default
_GROUPED = torch.ops.aten._grouped_mm.default
_FUSED_ADAM = frozenset({torch.ops.aten._fused_adam_.default, torch.ops.aten._fused_adamw_.default})
"""Ops that write into thousands of tensors, and whose function for tensors without memory does nothing."""
_WITHOUT_TENSORS = frozenset(
    {
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
)
_MISSING = object()
_VIEW = torch.ops.aten.view.default
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_ATEN = "aten"
_FUNCTIONAL = "_c10d_functional"
"""The namespace of collectives that return new tensors: torch remembers none, as each is to be called."""
_C10D = "c10d"
"""The namespace of collectives that write into tensors they are given."""
_FRAMES = 5
"""How many Python frames a collective's op has from `SimulationMode.__torch_dispatch__` to where it is called."""
_make_subclass = torch.Tensor._make_subclass


_found: dict[tuple[object, ...], tuple[Any, Any]] = {}
"""What ops of ATen returned in the worlds of this process, by their key: the op and torch's entry. The next world
begins with these, as torch's own cache goes on from mode to mode."""
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
        hits: results that were made of entries. `FakeTensorMode.cache_hits`, which torch counts them in, is left alone:
            writing to a class makes Python look up all its methods anew, which every op then pays for.
    """

    supports_higher_order_operators = True
    """Ops such as ``flex_attention`` and ``cond`` come to `dispatch`: torch looks for what `FakeTensorMode` does with
    them by the very type of the mode that is entered."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inventor = Inventor()
        self.integers = RealIntegers()
        self.hits = 0
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        self._entries: dict[tuple[object, ...], Any] = {key: entry for key, (_, entry) in _found.items()}
        self._ops: dict[int, Any] = {id(func): func for func, _ in _found.values()}
        """By the number that stands for them in keys."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `__torch_dispatch__` does so where it is needed

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch for every op."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            tensor = args[0]
            return _META if tensor.fake_mode.in_kernel_invocation else tensor._fake_device
        if get_eval_frame_callback() is not None:  # compiled code runs: the compiler is to leave the mode alone
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented
        with torch._C.DisableTorchFunction():
            return self.dispatch(func, types, args, kwargs)

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an op on fake tensors; ops on DTensors, and on results to be waited for, are left to these."""
        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented
        if func in _WITHOUT_TENSORS:
            return func(*args)
        kwargs = kwargs or {}
        if not types:
            if isinstance(func, HigherOrderOperator):
                return self._higher_order(func, args, kwargs)
            result = self.integers.run(func, args, kwargs)
            if result is not NotImplemented:
                return result
        read = READS.get(func)
        if read is not None and _needs_invention(args):
            return read(self.inventor, args, kwargs)
        if func is _PACK:
            return packed(self.inventor, self.integers, *args)
        if func in _FUSED_ADAM:
            return None
        if func is _GROUPED and args[0].dtype != torch.bfloat16:
            return self._grouped(func, types, args, kwargs)
        result = self._remembered(func, types, args, kwargs)
        note(func, args, kwargs, result)
        return result

    def _higher_order(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an op that calls functions, as `FakeTensorMode` gets it."""
        if func in registered_hop_fake_fns:
            return super().dispatch(func, (), args, kwargs)
        handler: Any = func.python_key_table.get(FakeTensorMode)
        return handler(self, *args, **kwargs) if handler is not None else NotImplemented

    def _grouped(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """A grouped product of another type than bfloat16, which torch's shape function asks for."""
        narrow = [torch.empty_like(arg, dtype=torch.bfloat16) for arg in args[:2]]
        wide: Any = super().dispatch(func, types, (*narrow, *args[2:]), kwargs)
        return torch.empty_like(wide, dtype=kwargs.get("out_dtype") or args[0].dtype)

    def _remembered(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an op, made of torch's cache entry where there is one."""
        if func is _UNSAFE_VIEW:  # torch remembers none, though its tensor is that of a view
            func = _VIEW
        key = self._key(func, args, kwargs)
        entry = None if key is None else self._entries.get(key, _MISSING)
        if entry is None or entry is _MISSING:
            if entry is None and key is not None and func.namespace == _FUNCTIONAL:
                return self._collective(func, args, kwargs)
            if key is None and func.namespace == _C10D and self._are_plain((*args, *kwargs.values())):
                return self._filled(func, args, kwargs)
            implementation = communicating_ops.implementation(func)
            if implementation is not None:
                with torch._C._EnableTorchFunction(), self:
                    return implementation(*args, **kwargs)
            result = super().dispatch(func, types, args, kwargs)
            if key is not None and entry is _MISSING:
                self._ops[id(func)] = func
                self._entries[key] = entry = self._entry(func, args, kwargs, result, key)
                if entry is not None and func.namespace == _ATEN:
                    _found[key] = func, entry
            return result
        made = [self._output(each, func, args) for each in entry.output_infos]
        self.hits += 1
        result = tuple(made) if entry.is_output_tuple else made[0]
        if self.cache_crosscheck_enabled:
            with disable_fake_tensor_cache(self):
                self._crosscheck_cache_output(result, func, types, args, kwargs)
        return result

    def _collective(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a collective on one fake tensor, whose kernel for meta tensors is called each time."""
        result = self._on_meta(func, args, kwargs)
        device: Any = getattr(args[0], "_fake_device", None)
        attributes = self._attributes.get(device)
        if type(result) is not torch.Tensor or attributes is None:
            flat: Any = pytree.arg_tree_leaves(*args, **kwargs)
            return self.wrap_meta_outputs_with_default_device_logic(result, func, flat, device=None)  # type: ignore[arg-type]
        return self._made(result, device, attributes)

    def _on_meta(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a collective, with its tensors taken for meta tensors."""
        with in_kernel_invocation_manager(self):
            return func(*args, **kwargs) if kwargs else mode_collectives.call(func, args, _FRAMES)

    def _are_plain(self, args: Iterable[Any]) -> bool:
        """Whether tensors among these arguments, or in lists of them, are fake ones of this mode without a value."""
        return all(
            self._are_plain(arg)
            if isinstance(arg, (list, tuple))
            else not isinstance(arg, torch.Tensor)
            or (type(arg) is FakeTensor and arg.fake_mode is self and _is_plain(arg))
            for arg in args
        )

    def _filled(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a collective that writes into fake tensors, and returns these and its work."""
        result = self._on_meta(func, args, kwargs)
        flat: Any = pytree.arg_tree_leaves(*args, **kwargs)
        set_written(flat)
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if self._are_plain(made):
            return result
        return self.wrap_meta_outputs_with_default_device_logic(result, func, flat, device=None)  # type: ignore[arg-type]

    def _entry(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, before: tuple[object, ...]
    ) -> Any:
        """The entry of what an op returned, torch's or ours; None where there is none.

        Args:
            func: the op.
            args: of its call.
            kwargs: of its call.
            result: what it returned.
            before: its key, as the arguments were then.
        """
        if can_have_entry(func):
            return entry_of(result, args, kwargs) if self._key(func, args, kwargs) == before else None
        try:
            key = self._cache_key(_CacheKeyState(self.shape_env), func, args, kwargs)
        except _BypassDispatchCache:
            return None
        entry = FakeTensorMode.cache.get(key)
        return entry if isinstance(entry, _DispatchCacheValidEntry) else None

    def known(self) -> list[tuple[str, tuple[object, ...], Any]]:
        """What ops returned so far, for `learn` in another process: the name of each, its key, and torch's entry."""
        known = []
        for (number, *rest), entry in self._entries.items():
            func = self._ops[number]  # type: ignore[index] # keys begin with it
            if entry is not None and func.namespace == _ATEN:
                known.append((str(func), tuple(rest), entry))
        return known

    def learn(self, known: Iterable[tuple[str, tuple[object, ...], Any]]) -> None:
        """Remember what ops returned to a mode in another process."""
        for name, rest, entry in known:
            func: Any = attrgetter(name)(torch.ops)
            self._ops[id(func)] = func
            self._entries.setdefault((id(func), *rest), entry)

    def _key(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, ...] | None:
        """All by which this call differs from others; None where it has something that is not known here."""
        key: list[object] = [
            id(func),
            torch.get_default_dtype(),
            torch._C._get_default_device(),
            torch.is_inference_mode_enabled(),
        ]
        return tuple(key) if append_arguments(key, args, kwargs, FakeTensor, self._append_tensor) else None

    def _append_tensor(self, key: list[object], tensor: FakeTensor) -> bool:
        """Append to a key all by which a tensor differs from others; False where that is not known."""
        if tensor.fake_mode is not self or not _is_plain(tensor):
            return False
        _describe_tensor(key, tensor)
        return True

    def _output(self, entry: Any, func: Any, args: Sequence[Any]) -> Any:
        """The tensor that a part of an entry describes: new, with the attributes that torch gives to those it makes."""
        if entry.inplace_idx is not None:
            return args[entry.inplace_idx]
        metadata = entry.metadata
        if metadata is None or metadata.is_conj or metadata.is_neg:
            return self._torchs_output(entry, func, args)
        attributes = self._attributes.get(metadata.device)
        if attributes is None:
            made: Any = self._torchs_output(entry, func, args)
            self._attributes[metadata.device] = dict(vars(made))
            return made
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(
                metadata.shape,
                metadata.stride,
                dtype=metadata.dtype,
                layout=metadata.layout,
                device=_META,
                requires_grad=metadata.requires_grad,
            )
            if entry.view_idx is not None:
                storage = args[entry.view_idx].untyped_storage()
                empty.set_(storage, metadata.storage_offset, metadata.shape, metadata.stride)
        return self._made(empty, metadata.device, attributes)

    def _made(self, meta: torch.Tensor, device: torch.device | None, attributes: Mapping[str, Any]) -> Any:
        """The fake tensor of a meta tensor."""
        made = _make_subclass(
            FakeTensor,
            meta,
            meta.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        if self._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(attributes)
        return made

    def _torchs_output(self, entry: Any, func: Any, args: Sequence[Any]) -> Any:
        key: Any = None  # read for symbolic sizes alone
        return self._get_output_tensor_from_cache_entry(_CacheKeyState(self.shape_env), entry, key, func, args)


def _needs_invention(args: Sequence[Any]) -> bool:
    """Whether torch has no value of its own for what is read: it keeps those of small constants."""
    return isinstance(args[0], FakeTensor) and args[0].constant is None


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.constant is None and tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides


def _describe_tensor(key: list[object], tensor: FakeTensor) -> None:
    key += (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor._fake_device,
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
