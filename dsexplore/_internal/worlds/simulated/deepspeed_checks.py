"""DeepSpeed's checks that all ranks have the same parameters: the simulated rank checks as if it were rank 0.

During set-up and in its first step, ZeRO-3 broadcasts the number of parameters and their ids from rank 0, and ends the
program on a rank that has others. In a simulated world no process sends them. All ranks run the same program, so rank 0
is assumed to have those of this rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch

_MODULE = "deepspeed.runtime.zero.utils"


def _check_as_rank_0(check: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Wrap a check to run as on rank 0."""
    module = sys.modules[_MODULE]  # check.__module__ is the module of a decorator

    @wraps(check)
    def checked(*args: Any, **kwargs: Any) -> Any:
        comm = vars(module)["dist"]
        vars(module)["dist"] = _Rank0(comm)
        try:
            return check(*args, **kwargs)
        finally:
            vars(module)["dist"] = comm

    return checked


class _Rank0:
    """The module ``deepspeed.comm`` with the rank 0."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def get_rank(self, group: Any = None) -> int:
        """Return 0, the rank that broadcasts."""
        return 0


PATCHES: tuple[Entry, ...] = tuple(
    Patch(TorchName(f"{_MODULE}:{name}"), "rank 0 sends nothing", _check_as_rank_0)
    for name in ("assert_lst_len_same_as_other_ranks", "get_lst_from_rank0")
)
