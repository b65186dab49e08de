"""torch's own ``CommDebugMode``: the class, and the tables of the ops that it counts and lists."""

from __future__ import annotations

from typing import Any, NamedTuple

from dsexplore._internal.torch_internals.names import internal

_MODULE = "torch.distributed.tensor.debug._comm_mode"


class CountedOps(NamedTuple):
    """Ops that torch's mode distinguishes, each an ``OpOverloadPacket`` except those in ``trivial``."""

    older_names: dict[Any, Any]
    """Functional ops, and the older ones under which they are counted."""
    functional: frozenset[Any]
    """The functional and DTensor ops that are counted."""
    c10d: frozenset[Any]
    """The ops of c10d that are counted: none from point to point, no barriers."""
    trivial: set[str]
    """Names of operations that only the highest noise level shows."""


def counted_ops() -> CountedOps:
    """Return the op tables of torch's mode."""
    return CountedOps(
        internal(f"{_MODULE}:NATIVE_TO_PY_MAPPING"),
        frozenset(make_mode().comm_registry),
        frozenset(internal(f"{_MODULE}:c10d_collective_ops")),
        internal(f"{_MODULE}:trivial_ops"),
    )


def make_mode() -> Any:
    """Return torch's mode, which only forms what it is filled with while it is not entered."""
    from torch.distributed.tensor.debug import CommDebugMode

    return CommDebugMode()
