"""`ComparedMode`: run a program without dropout, and on demand in float64 whatever dtypes it names.

In float64 rounding is far below the effect of any error, so a remaining difference of two runs is an error. Random
numbers are drawn in the program's dtype and then converted, so that all precisions have the same ones. Dropout is off,
because a whole batch and its parts cannot have the same draws; `draw_mode` compares those in a run of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dsexplore._internal.torch_internals.autograd import RUN_BACKWARD
from dsexplore._internal.torch_internals.function_modes import inside_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.pipelining import INFER_FORWARD, INFER_SHAPES

OFF_BY_DEFAULT = frozenset({F.alpha_dropout, F.feature_alpha_dropout})
"""Functions of dropout whose ``training`` is False by default."""
_MULTI_HEAD_PARAMETERS = tuple(signature(F.multi_head_attention_forward).parameters)
LOWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes that float64 replaces."""
CASTS = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})
DROPOUTS = frozenset(
    {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
)
ATTENTION = frozenset({F.scaled_dot_product_attention, F.multi_head_attention_forward})
"""Functions that drop attention weights inside."""
RANDOM_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in ("uniform_", "normal_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_")
)
RANDOM = RANDOM_IN_PLACE | {
    *(torch.bernoulli, torch.rand, torch.rand_like, torch.randn, torch.randn_like),
    *(torch.normal, torch.multinomial, torch.randint, torch.randperm),
}
"""Random functions other than dropout."""


class ComparedMode(TorchFunctionMode):
    """Function mode that runs a program without dropout.

    Args:
        exact: whether to compute in float64.
    """

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self._exact = exact
        self.running_module: Callable[[], str | None] = lambda: None
        """Function that returns the path of the running module; None outside the model."""
        self.dropped: dict[tuple[str, str], float] = {}
        """{(module, function of dropout): largest share of elements that a call drops}."""
        self.draws = False
        """True if the model has drawn random numbers in training, by dropout or otherwise."""
        self.infers_shapes = False
        """True while a pipeline stage infers shapes, by calling its module on zeros."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch without dropout, and in float64 if the mode is exact."""
        kwargs = dict(kwargs or {})
        if func in DROPOUTS or func in ATTENTION:
            self._note(func, dropped_share(func, args, kwargs))
        elif func in RANDOM and self.running_module() is not None:
            self.draws = True
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = self._attention_without_dropout(args, kwargs)
        elif func is F.multi_head_attention_forward and kwargs.get("training", True):
            kwargs["training"] = False
        return self._in_double(func, args, kwargs) if self._exact else func(*args, **kwargs)

    def _note(self, func: Any, share: float) -> None:
        """Note the share of elements that a call would drop."""
        module = self.running_module()
        self.draws |= share > 0
        if module is not None:
            key = module, func.__name__
            self.dropped[key] = max(self.dropped.get(key, 0.0), share)

    def _attention_without_dropout(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of ``scaled_dot_product_attention`` with a ``dropout_p`` of 0."""
        position = 4
        if len(args) > position:
            return (*args[:position], 0.0, *args[position + 1 :]), kwargs
        return args, {**kwargs, "dropout_p": 0.0}

    def _in_double(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with float64 in place of lower dtypes."""
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            return func(*args, **kwargs)
        if func in CASTS:
            return args[0].double()
        if func in RANDOM_IN_PLACE or getattr(func, "__module__", "") == "torch.nn.init":
            return _draw_in_float32(func, args, kwargs)
        is_in_place = (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None
        first = 1 if is_in_place and args else 0
        args = (*args[:first], *map(_to_double, args[first:]))
        kwargs = {key: value if key == "out" else _to_double(value) for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        return result if is_in_place else _result_to_double(result)


def _marked_as_inferring(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Return a function that sets `ComparedMode.infers_shapes` while it calls the original."""
    mode = parts[ComparedMode]

    def run(*args: Any, **kwargs: Any) -> Any:
        mode.infers_shapes = True
        try:
            return original(*args, **kwargs)
        finally:
            mode.infers_shapes = False

    return run


def dropped_share(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the share of elements that a call of dropout or attention drops; 0 if it is not in training."""
    if func is F.multi_head_attention_forward:
        named = dict(zip(_MULTI_HEAD_PARAMETERS, args, strict=False), **kwargs)
        return float(named.get("dropout_p", 0.0)) if named.get("training", True) else 0.0
    if func is F.scaled_dot_product_attention:
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    named = dict(zip(("input", "p", "training"), args, strict=False), **kwargs)
    is_training = named.get("training", named.get("train", func not in OFF_BY_DEFAULT))
    return float(named.get("p", 0.5)) if is_training else 0.0


_INFERS = "it calls a stage's module on zeros, which is not a call of the program"
PATCHES: tuple[Entry, ...] = (
    Patch(INFER_SHAPES, _INFERS, _marked_as_inferring, on_import=True),
    Patch(INFER_FORWARD, _INFERS, _marked_as_inferring, on_import=True),
    Patch(
        RUN_BACKWARD,
        "torch disables modes while it runs, and hooks and the recomputation of checkpoints need them there",
        lambda original, parts: inside_mode(parts[ComparedMode], original),
        by_code=True,
    ),
)
"""Functions that are replaced while two runs are compared."""


def _draw_in_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an in-place random function; a float64 tensor is filled with values that are drawn in float32."""
    target = args[0] if args else kwargs.get("tensor")
    if not isinstance(target, Tensor) or target.dtype != torch.float64:
        return func(*args, **kwargs)
    drawn = torch.empty_like(target, dtype=torch.float32, requires_grad=False)
    with torch.no_grad():
        drawn.copy_(target.detach())
        if args:
            func(drawn, *args[1:], **kwargs)
        else:
            func(**{**kwargs, "tensor": drawn})
        target.detach().copy_(drawn)
    return target


def _to_double(value: Any) -> Any:
    """Return an argument with float64 in place of lower dtypes: a dtype, a tensor, or a list or tuple of them."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in LOWER else value
    if isinstance(value, Tensor):
        return value.double() if value.dtype in LOWER else value
    if type(value) in (list, tuple):
        return type(value)(map(_to_double, value))
    return value


def _result_to_double(result: Any) -> Any:
    """Return a result in float64; a new leaf of a lower dtype becomes a leaf in float64."""
    if isinstance(result, Tensor):
        if result.dtype not in LOWER:
            return result
        if result.requires_grad and result.is_leaf:
            return result.detach().double().requires_grad_()
        return result.double()
    if type(result) in (list, tuple):
        return type(result)(map(_result_to_double, result))
    return result
