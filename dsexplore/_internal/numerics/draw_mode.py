"""`DrawMode`: report the random draws of a program inside its modules, in forward and in its recomputation.

A draw of dropout is the mask of the elements that it set to zero, a draw of another function is its result. The weights
that attention drops cannot be seen, so its draw is the state of the generator before the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dsexplore._internal.numerics.compared_mode import ATTENTION, DROPOUTS, RANDOM, dropped_share
from dsexplore._internal.torch_internals.autograd import RUN_BACKWARD
from dsexplore._internal.torch_internals.function_modes import inside_mode
from dsexplore._internal.torch_internals.patches import Entry, Patch


class DrawMode(TorchFunctionMode):
    """Function mode that reports the draws of random functions."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Callable[[str, Tensor], None] = lambda function, draw: None
        """Function that is called with the name of a random function and its draw, after each call."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func in ATTENTION and dropped_share(func, args, kwargs):
            self.report(func.__name__, torch.get_rng_state())
        if func in DROPOUTS and dropped_share(func, args, kwargs):
            tensor = args[0] if args else kwargs["input"]
            was_zero = tensor == 0  # before the call, which may be in place
            result = func(*args, **kwargs)
            self.report(func.__name__, (result == 0) & ~was_zero)
            return result
        result = func(*args, **kwargs)
        if func in RANDOM and isinstance(result, Tensor):
            self.report(func.__name__, result)
        return result


PATCHES: tuple[Entry, ...] = (
    Patch(
        RUN_BACKWARD,
        "torch disables modes while it runs, and the recomputation of checkpoints draws there",
        lambda original, parts: inside_mode(parts[DrawMode], original),
        by_code=True,
    ),
)
"""Functions that are replaced while draws are reported."""
