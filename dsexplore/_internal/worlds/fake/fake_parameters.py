"""Parameters of a class of their own in a world of fake tensors, those without a shape of lazy modules among them.

Torch makes a plain fake tensor of ``MyParameter(fake)``, which has none of the class's methods and for which Python
calls no ``__init__``, and it makes no `nn.UninitializedParameter` at all. Here both are instances of their class and of
`FakeTensor`.
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
    """The classes of fake tensors that are a class of the program's, too; of one world, as they keep that alive."""

    def __init__(self) -> None:
        self._of: dict[Any, type] = {}

    def give(self, kind: Any, tensor: Any) -> Tensor:
        """Give a fake tensor that was just made a class of the program's, and return it."""
        if issubclass(kind, Parameter):
            mark_as_parameter(tensor)  # for when torch makes it a plain fake tensor, as one that gets its shape
        tensor.__class__ = kind if issubclass(kind, FakeTensor) else self._fake_class(kind)
        return tensor  # type: ignore[no-any-return]

    def _fake_class(self, kind: Any) -> type:
        if kind not in self._of:
            bases = (_Uninitialized, kind) if issubclass(kind, UninitializedTensorMixin) else (kind,)
            names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            self._of[kind] = type(kind)(kind.__name__, (*bases, FakeTensor), names)
        return self._of[kind]


def _make_subclass(original: Callable[..., Tensor], parts: Parts) -> staticmethod[..., Tensor]:
    def make_subclass(kind: type, data: Tensor, require_grad: bool = False, **kwargs: Any) -> Tensor:
        if type(data) is not FakeTensor or not issubclass(kind, (Parameter, UninitializedTensorMixin)):
            return original(kind, data, require_grad, **kwargs)
        return parts[_Classes].give(kind, data.detach().requires_grad_(require_grad))

    return staticmethod(make_subclass)


def _new_parameter(original: Callable[..., Tensor], parts: Parts) -> Callable[..., Tensor]:
    def new_parameter(cls: type, data: Tensor | None = None, requires_grad: bool = True) -> Tensor:
        made = original(cls, data, requires_grad)
        return made if type(made) is not FakeTensor or cls is Parameter else parts[_Classes].give(cls, made)

    return new_parameter


class _Uninitialized:
    """The parts of an uninitialized tensor that differ on fake tensors."""

    cls_to_become: type = FakeTensor

    @property
    def shape(self) -> Any:
        """Raise torch's error in the program; in the fake mode return the shape of an empty tensor."""
        owner: Any = UninitializedTensorMixin
        if active_fake_mode() is None:  # the mode has called, and left itself
            owner = Tensor
        return owner.shape.__get__(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Do what torch does, on a fake tensor without this class: the ops that convert it read its shape.

        Of a buffer torch makes a buffer without a shape, and of a parameter a tensor.
        """
        if func in allowed_when_uninitialized and isinstance(args[0], cls):
            with no_torch_function():
                args = (args[0].detach(), *args[1:])  # type: ignore[attr-defined] # it is a tensor
        made = super().__torch_function__(func, types, args, kwargs)  # type: ignore[misc]
        if type(made) is FakeTensor and not issubclass(cls, Parameter):
            made.__class__ = cls  # type: ignore[assignment]
        return made


PATCHES: tuple[Entry, ...] = (
    Patch(MAKE_SUBCLASS, "it makes plain fake tensors of a class's", _make_subclass, when="fake"),
    Patch(NEW_PARAMETER, "it returns plain fake tensors for parameters of a class", _new_parameter, when="fake"),
)
