"""`ComparedMode`: runs a program without dropout, and on demand in float64 whatever dtypes it names.

In float64 rounding is far below anything that a fault does, so what two runs still disagree on is a fault. Random
numbers are drawn in the dtype that the program asked for and then converted, so that each precision sees the same ones.
Dropout is off, as its draws cannot be the same for a whole batch and for its parts; `draw_mode` looks at them apart.
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
"""Dropout whose ``training`` is False unless it is given."""
_OF_MANY_HEADS = tuple(signature(F.multi_head_attention_forward).parameters)
LOWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes that float64 replaces."""
CASTS = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})
DROPOUTS = frozenset(
    {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
)
ATTENTION = frozenset({F.scaled_dot_product_attention, F.multi_head_attention_forward})
"""Functions that drop weights which nobody sees."""
RANDOM_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in ("uniform_", "normal_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_")
)
RANDOM = RANDOM_IN_PLACE | {
    getattr(torch, name)
    for name in (
        "bernoulli",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "normal",
        "multinomial",
        "randint",
        "randperm",
    )
}
"""What draws other than by dropout."""


class ComparedMode(TorchFunctionMode):
    """Calls torch for a program whose values are compared.

    Args:
        exact: whether to compute in float64.
    """

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self._exact = exact
        self.running_module: Callable[[], str | None] = lambda: None
        """Returns the path of the module that runs; None outside of the model."""
        self.dropped: dict[tuple[str, str], float] = {}
        """See `RunRecord.dropped`."""
        self.draws = False
        """Whether the model draws random numbers in training, by dropout or otherwise."""
        self.infers_shapes = False
        """Whether a stage of a pipeline finds out its shapes, with a call of its module that is not the program's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch without dropout, in float64 if wanted."""
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
        return self._raised(func, args, kwargs) if self._exact else func(*args, **kwargs)

    def _note(self, func: Any, share: float) -> None:
        module = self.running_module()
        self.draws |= share > 0
        if module is not None:
            key = module, func.__name__
            self.dropped[key] = max(self.dropped.get(key, 0.0), share)

    def _attention_without_dropout(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        position = 4
        if len(args) > position:
            return (*args[:position], 0.0, *args[position + 1 :]), kwargs
        return args, {**kwargs, "dropout_p": 0.0}

    def _raised(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with float64 in the place of lower dtypes."""
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            return func(*args, **kwargs)
        if func in CASTS:
            return args[0].double()
        if func in RANDOM_IN_PLACE or getattr(func, "__module__", "") == "torch.nn.init":
            return _drawn_lower(func, args, kwargs)
        in_place = (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None
        first = 1 if in_place and args else 0
        raised = (*args[:first], *map(_to_double, args[first:]))
        kwargs = {key: value if key == "out" else _to_double(value) for key, value in kwargs.items()}
        result = func(*raised, **kwargs)
        return result if in_place else _result_to_double(result)


def _marked_as_inferring(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    mode = parts[ComparedMode]

    def run(*args: Any, **kwargs: Any) -> Any:
        mode.infers_shapes = True
        try:
            return original(*args, **kwargs)
        finally:
            mode.infers_shapes = False

    return run


def dropped_share(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the share of elements that a call of dropout or attention drops; 0 out of training."""
    if func is F.multi_head_attention_forward:
        named = dict(zip(_OF_MANY_HEADS, args, strict=False), **kwargs)
        return float(named.get("dropout_p", 0.0)) if named.get("training", True) else 0.0
    if func is F.scaled_dot_product_attention:
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    named = dict(zip(("input", "p", "training"), args, strict=False), **kwargs)
    is_training = named.get("training", named.get("train", func not in OFF_BY_DEFAULT))
    return float(named.get("p", 0.5)) if is_training else 0.0


_INFERS = "it calls a stage's module on zeros, which is no call of the program's"
PATCHES: tuple[Entry, ...] = (
    Patch(INFER_SHAPES, _INFERS, _marked_as_inferring, on_import=True),
    Patch(INFER_FORWARD, _INFERS, _marked_as_inferring, on_import=True),
    Patch(
        RUN_BACKWARD,
        "torch takes modes off while it runs, which hooks of FSDP and of the program and what checkpointing computes "
        "again find in forward",
        lambda original, parts: inside_mode(parts[ComparedMode], original),
        by_code=True,
    ),
)
"""Functions that are replaced while two runs are compared."""


def _drawn_lower(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill a float64 tensor with values that were drawn in float32."""
    target = args[0] if args else kwargs.get("tensor")
    if not isinstance(target, Tensor) or target.dtype != torch.float64:
        return func(*args, **kwargs)
    drawn = torch.empty_like(target, dtype=torch.float32, requires_grad=False)
    with torch.no_grad():
        drawn.copy_(target.detach())
        func(*((drawn, *args[1:]) if args else ()), **({**kwargs, "tensor": drawn} if not args else kwargs))
        target.detach().copy_(drawn)
    return target


def _to_double(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in LOWER else value
    if isinstance(value, Tensor):
        return value.double() if value.dtype in LOWER else value
    if type(value) in (list, tuple):
        return type(value)(map(_to_double, value))
    return value


def _result_to_double(result: Any) -> Any:
    if isinstance(result, Tensor):
        if result.dtype not in LOWER:
            return result
        if result.requires_grad and result.is_leaf:
            return result.detach().double().requires_grad_()
        return result.double()
    if type(result) in (list, tuple):
        return type(result)(map(_result_to_double, result))
    return result
