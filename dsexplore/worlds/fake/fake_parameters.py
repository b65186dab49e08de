"""Parameters of a class of their own in a world of fake tensors, those without a shape of lazy modules among them.

Torch makes a plain fake tensor of ``MyParameter(fake)``, which has none of the class's methods and for which Python
calls no ``__init__``, and it makes no `nn.UninitializedParameter` at all. Here both are instances of their class and of
`FakeTensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined] # missing in torch's stubs

from dsexplore.torch_internals.patches import Patches


def patch_parameters(patches: Patches) -> None:
    """Make parameters and uninitialised tensors of fake data keep their class."""
    make: Callable[..., Tensor] = Tensor._make_subclass
    new: Callable[..., Tensor] = Parameter.__new__
    fake_class = cache(_fake_class)  # of this world alone, as it keeps the program's classes alive

    def given(kind: Any, tensor: Any) -> Tensor:
        """A fake tensor that was just made, with another class."""
        if issubclass(kind, Parameter):
            tensor._is_param = True  # for when torch makes it a plain fake tensor, as one that gets its shape
        tensor.__class__ = kind if issubclass(kind, FakeTensor) else fake_class(kind)
        return tensor  # type: ignore[no-any-return]

    def make_subclass(kind: type, data: Tensor, require_grad: bool = False, **kwargs: Any) -> Tensor:
        if type(data) is not FakeTensor or not issubclass(kind, (Parameter, UninitializedTensorMixin)):
            return make(kind, data, require_grad, **kwargs)
        return given(kind, data.detach().requires_grad_(require_grad))

    def new_parameter(cls: type, data: Tensor | None = None, requires_grad: bool = True) -> Tensor:
        made = new(cls, data, requires_grad)
        return made if type(made) is not FakeTensor or cls is Parameter else given(cls, made)

    patches.attribute(Tensor, "_make_subclass", staticmethod(make_subclass))
    patches.attribute(Parameter, "__new__", new_parameter)


def _fake_class(kind: Any) -> type:
    """A class of fake tensors that is this class of parameters, too."""
    bases = (_Uninitialized, kind) if issubclass(kind, UninitializedTensorMixin) else (kind,)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: type = type(kind)(kind.__name__, (*bases, FakeTensor), names)
    return made


class _Uninitialized:
    """The parts of an uninitialised tensor that are others on fake tensors."""

    cls_to_become: type = FakeTensor

    @property
    def shape(self) -> Any:
        """Torch's error for the program, and the size, which is that of no element, for the mode of fake tensors."""
        owner: Any = UninitializedTensorMixin
        if active_fake_mode() is None:  # it has called, and left itself
            owner = Tensor
        return owner.shape.__get__(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """As torch's, on a fake tensor without this class: the ops that convert it read its shape.

        Of a buffer torch makes a buffer without a shape, and of a parameter a tensor.
        """
        if func in UninitializedTensorMixin._allowed_methods and isinstance(args[0], cls):
            with torch._C.DisableTorchFunction():
                args = (args[0].detach(), *args[1:])  # type: ignore[attr-defined] # it is a tensor
        made = super().__torch_function__(func, types, args, kwargs)  # type: ignore[misc]
        if type(made) is FakeTensor and not issubclass(cls, Parameter):
            made.__class__ = cls  # type: ignore[assignment]
        return made
