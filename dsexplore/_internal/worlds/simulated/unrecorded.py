"""Ways to communicate that are not recorded: RPC and symmetric memory raise an error, torchcomms makes a remark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches, on_import
from dsexplore._internal.torch_internals.process_groups import INIT_RPC, SYMMETRIC_MEMORY
from dsexplore._internal.worlds.remarks import Remarks

_COMMS = "torchcomms"


def _refuse(message: str, _original: Any, _parts: Parts) -> Callable[..., NoReturn]:
    """Replace a function by one that raises `UsageError` with a message."""

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(message)

    return refused


_NO_RPC = (
    "RPC is not recorded: it calls functions of other processes, and a simulated world has one process. Trace the part "
    "of the program that uses collectives, without torch.distributed.rpc.init_rpc"
)


def _no_symmetric_memory(name: str) -> str:
    return (
        f"symmetric memory ({name}) is not recorded, and a simulated world has none: use collectives of "
        "torch.distributed in this run"
    )


def _note_import(patches: Patches, parts: Parts) -> None:
    """Make a remark when the program imports torchcomms."""
    remarks = parts[Remarks]
    on_import(patches, _COMMS, lambda _module: remarks.say(f"{_COMMS} is not recorded: traces lack its collectives"))


PATCHES: tuple[Entry, ...] = (
    Patch(INIT_RPC, "it waits for other processes", partial(_refuse, _NO_RPC), on_import=True),
    *(
        Patch(
            target,
            "it maps the memory of other ranks",
            partial(_refuse, _no_symmetric_memory(target.path.replace(":", "."))),
            on_import=True,
        )
        for target in SYMMETRIC_MEMORY
    ),
    Change("a remark on torchcomms", "it has its own groups", _note_import),
)
