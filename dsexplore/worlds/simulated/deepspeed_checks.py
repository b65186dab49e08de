"""DeepSpeed's checks that all ranks hold the same numbers: rank 0 is taken to hold those of the rank that is played.

ZeRO-3 broadcasts, as it sets up and in its first step, the number of its parameters and their identities from rank 0,
and ends the program on a rank that has others. What rank 0 would send, no process does; but all ranks run the same
program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches

_CHECKS = ("assert_lst_len_same_as_other_ranks", "get_lst_from_rank0")


def patch_deepspeed_checks(patches: Patches) -> None:
    """Any rank sends in these checks what it holds, as rank 0 does, from now on or as soon as DeepSpeed is imported."""
    on_import(patches, "deepspeed.runtime.zero.utils", partial(_patch, patches))


def _patch(patches: Patches, module: ModuleType) -> None:
    for name in _CHECKS:
        check = getattr(module, name, None)  # of versions that have it
        if check is not None:
            patches.attribute(module, name, _as_rank_0(check, module))


def _as_rank_0(check: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """The same function, for which this rank is rank 0."""

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
    """The module ``deepspeed.comm``, as rank 0 finds it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def get_rank(self, group: Any = None) -> int:
        """The rank that sends."""
        return 0
