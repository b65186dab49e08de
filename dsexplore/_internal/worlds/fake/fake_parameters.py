"""Fake tensors of subclasses of `nn.Parameter`, and uninitialized ones of lazy modules.

torch returns a plain fake tensor for ``MyParameter(fake)``, without the methods of the class and without a call of its
``__init__``, and it raises for `nn.UninitializedParameter`. Here both are instances of their class and of `FakeTensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined] # missing in torch's stubs

from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, active_fake_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.tensors import (
    MAKE_SUBCLASS,
    NEW_PARAMETER,
    allowed_when_uninitialized,
    mark_as_parameter,
    no_torch_function,
)


class _Classes:
    """Classes that derive from `FakeTensor` and from a class of the program. Each world has its own, as they keep the
    program's classes alive."""

    def __init__(self) -> None:
        self._of: dict[Any, type] = {}

    def give(self, kind: Any, tensor: Any) -> Tensor:
        """Change the class of a new fake tensor to a class of the program, and return the tensor."""
        if issubclass(kind, Parameter):
            mark_as_parameter(tensor)  # it stays one when torch makes it a plain fake tensor, with its shape
        tensor.__class__ = kind if issubclass(kind, FakeTensor) else self._fake_class(kind)
        return tensor  # type: ignore[no-any-return]

    def _fake_class(self, kind: Any) -> type:
        if kind not in self._of:
            bases = (_Uninitialized, kind) if issubclass(kind, UninitializedTensorMixin) else (kind,)
            names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            self._of[kind] = type(kind)(kind.__name__, (*bases, FakeTensor), names)
        return self._of[kind]


def _make_subclass(original: Callable[..., Tensor], parts: Parts) -> staticmethod[..., Tensor]:
    """Wrap ``Tensor._make_subclass`` to return fake tensors of the subclass of parameters that was asked for."""

    def make_subclass(kind: type, data: Tensor, require_grad: bool = False, **kwargs: Any) -> Tensor:
        if type(data) is not FakeTensor or not issubclass(kind, (Parameter, UninitializedTensorMixin)):
            return original(kind, data, require_grad, **kwargs)
        return parts[_Classes].give(kind, data.detach().requires_grad_(require_grad))

    return staticmethod(make_subclass)


def _new_parameter(original: Callable[..., Tensor], parts: Parts) -> Callable[..., Tensor]:
    """Wrap ``Parameter.__new__`` to return fake tensors of the subclass that was asked for."""

    def new_parameter(cls: type, data: Tensor | None = None, requires_grad: bool = True) -> Tensor:
        parameter = original(cls, data, requires_grad)
        is_plain = type(parameter) is FakeTensor and cls is not Parameter
        return parts[_Classes].give(cls, parameter) if is_plain else parameter

    return new_parameter


class _Uninitialized:
    """Mixin of uninitialized fake tensors, with what differs from torch's uninitialized tensors."""

    cls_to_become: type = FakeTensor

    @property
    def shape(self) -> Any:
        """Shape of an empty tensor for torch's fake mode; a read by the program raises torch's error."""
        owner: Any = UninitializedTensorMixin
        if active_fake_mode() is None:  # the mode reads it, and has left itself for that
            owner = Tensor
        return owner.shape.__get__(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Call a function of torch; one that converts the tensor gets it without this class, as it reads the shape.

        As in torch, the result for a buffer is a buffer without a shape; the result for a parameter is a tensor.
        """
        if func in allowed_when_uninitialized and isinstance(args[0], cls):
            with no_torch_function():
                args = (args[0].detach(), *args[1:])  # type: ignore[attr-defined] # it is a tensor
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[misc]
        if type(result) is FakeTensor and not issubclass(cls, Parameter):
            result.__class__ = cls  # type: ignore[assignment]
        return result


PATCHES: tuple[Entry, ...] = (
    Patch(MAKE_SUBCLASS, "it returns plain fake tensors for subclasses", _make_subclass, when="fake"),
    Patch(NEW_PARAMETER, "it returns plain fake tensors for subclasses", _new_parameter, when="fake"),
)
