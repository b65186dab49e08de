"""Ways to communicate that no recorder sees, symmetric memory and torchcomms: they raise an error or make a remark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches, on_import
from dsexplore._internal.torch_internals.process_groups import SYMMETRIC_MEMORY
from dsexplore._internal.worlds.remarks import Remarks

_COMMS = "torchcomms"
_NOT_RECORDED = "is not recorded: what goes by it is in no trace"


def _refuse(name: str, _original: Any, _parts: Parts) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"symmetric memory ({name}) {_NOT_RECORDED}, and there is none in a simulated world: take the collectives "
            "of torch.distributed for this run"
        )

    return refused


def _note_import(patches: Patches, parts: Parts) -> None:
    remarks = parts[Remarks]
    on_import(patches, _COMMS, lambda _module: remarks.say(f"{_COMMS} {_NOT_RECORDED}"))


PATCHES: tuple[Entry, ...] = (
    *(
        Patch(
            target,
            "it maps the memory of other ranks",
            partial(_refuse, target.path.replace(":", ".")),
            on_import=True,
        )
        for target in SYMMETRIC_MEMORY
    ),
    Change("a remark on torchcomms", "it has groups of its own", _note_import),
)
