"""`DrawMode`: sees what a program draws at random inside of its modules, in forward and where that is computed again.

Of dropout it sees the elements that were set to zero, of other functions what they return. Attention drops weights that
nobody sees: of it, the state of the generator with which it drew.
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
    """Reports what random functions draw.

    Args:
        report: called with a function's name and what it drew, after each call that draws.
    """

    def __init__(self, report: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func in ATTENTION and dropped_share(func, args, kwargs):
            self._report(func.__name__, torch.get_rng_state())
        if func in DROPOUTS and dropped_share(func, args, kwargs):
            given = args[0] if args else kwargs["input"]
            was_zero = given == 0  # before it, as it may work in place
            result = func(*args, **kwargs)
            self._report(func.__name__, (result == 0) & ~was_zero)
            return result
        result = func(*args, **kwargs)
        if func in RANDOM and isinstance(result, Tensor):
            self._report(func.__name__, result)
        return result


PATCHES: tuple[Entry, ...] = (
    Patch(
        RUN_BACKWARD,
        "torch takes modes off while it runs, in which what checkpointing computes again draws",
        lambda original, parts: inside_mode(parts[DrawMode], original),
        by_code=True,
    ),
)
"""Functions that are replaced while draws are looked at."""
