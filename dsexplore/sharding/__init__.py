"""The shards that each rank holds, computed from placements and mesh without a process group.

The package can be called: ``dsexplore.sharding(model)`` calls `sharding.plan.sharding`.
"""

from __future__ import annotations

import sys
from inspect import getdoc, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsexplore._internal.sharding.layout import Sharding as Sharding

__all__ = ["Sharding"]
_ABOUT = __doc__


class _CallablePackage(ModuleType):
    """Class of this package's module, which makes it callable like the function `plan.sharding`."""

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # for help() and ``?``
        """Documentation of the package: its signature as a function, and its description."""
        from dsexplore._internal.sharding.plan import sharding

        return f"dsexplore.sharding{signature(sharding)}\n\n{getdoc(sharding)}\n\n{_ABOUT}"

    def __call__(self, *arguments: Any, **named: Any) -> Sharding:
        from dsexplore._internal.sharding.plan import sharding

        return sharding(*arguments, **named)


def __getattr__(name: str) -> Any:
    if name == "Sharding":
        from dsexplore._internal.sharding.layout import Sharding

        return Sharding
    if name == "__wrapped__":  # lets inspect and help() show the function's signature and text
        from dsexplore._internal.sharding.plan import sharding

        return sharding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _CallablePackage
