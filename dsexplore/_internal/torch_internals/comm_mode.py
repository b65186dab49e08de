"""torch's own ``CommDebugMode``, and the tables of the ops that it counts and lists."""

from __future__ import annotations

from typing import Any, NamedTuple

from dsexplore._internal.torch_internals.names import internal

_MODULE = "torch.distributed.tensor.debug._comm_mode"


class CountedOps(NamedTuple):
    """Ops that torch's mode distinguishes, each an ``OpOverloadPacket`` except those in ``trivial``."""

    older_names: dict[Any, Any]
    """{functional op: older op as which it is counted}."""
    functional: frozenset[Any]
    """The functional and DTensor ops that are counted."""
    c10d: frozenset[Any]
    """The ops of c10d that are counted; sends, receives and barriers are not."""
    trivial: set[str]
    """Names of operations that only the highest noise level shows."""


def counted_ops() -> CountedOps:
    """Return the op tables of torch's mode."""
    return CountedOps(
        older_names=internal(f"{_MODULE}:NATIVE_TO_PY_MAPPING"),
        functional=frozenset(make_mode().comm_registry),
        c10d=frozenset(internal(f"{_MODULE}:c10d_collective_ops")),
        trivial=internal(f"{_MODULE}:trivial_ops"),
    )


def make_mode() -> Any:
    """Return torch's mode; unless it is entered, it only formats the counts that it is given."""
    from torch.distributed.tensor.debug import CommDebugMode

    return CommDebugMode()
