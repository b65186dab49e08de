"""Where in the program a profiled rank was: the ranges around a moment on the thread that issued a collective.

Ranges are the calls of modules on the Python stack (``nn.Module: Linear_3``), what the program named with
``record_function``, steps of the profiler, and autograd's nodes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsexplore.trace.importers.profiler_file import Event
from dsexplore.trace.schema import Phase

_MODULE = "nn.Module: "
_STEP = re.compile(r"ProfilerStep#(\d+)")
_FSDP = re.compile(r"FSDP::(\S+)(?: (?:for )?\(?([\w.\[\]-]+)\)?)?")
_OPTIMIZER = ("Optimizer.step", "optimizer_step")
_BACKWARD = ("autograd::engine::evaluate_function", "## backward")
_NOT_THE_PROGRAMS = (
    "nccl:",
    "gloo:",
    "c10d::",
    "record_param_comms",
    "Optimizer.",
    "ProfilerStep",
    "autograd::",
    "FSDP::",
)


class Place(NamedTuple):
    """Where a collective was issued."""

    step: int | None
    phase: Phase
    modules: tuple[str, ...]
    """The modules that ran, outermost first; in a file without any, the ranges that the program named."""
    names: tuple[str, ...]
    """The program's names of the ranges around a collective, outermost first."""
    owner: str
    """The module that FSDP names; empty where it names none."""
    cause: str
    """FSDP's reason; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class _Range:
    start: float
    end: float
    name: str


class Places:
    """The ranges of one trace on the threads that issued collectives.

    Args:
        events: of the trace.
        threads: of its collectives.
    """

    def __init__(self, events: Iterable[Event], threads: Iterable[object]) -> None:
        wanted = set(threads)
        self._ranges: dict[object, list[_Range]] = defaultdict(list)
        self._steps: list[tuple[float, float, int]] = []
        self._has_modules = False
        for event in events:
            name = event["name"]
            if name.startswith("ProfilerStep#") and (found := _STEP.match(name)):
                start = float(event["ts"])
                self._steps.append((start, start + float(event.get("dur", 0)), int(found[1])))
            elif (thread := (event.get("pid"), event.get("tid"))) in wanted and _is_range(event):
                start = float(event["ts"])
                self._has_modules = self._has_modules or name.startswith(_MODULE)
                self._ranges[thread].append(_Range(start, start + float(event.get("dur", 0)), name))
        self.first_step = min((step for *_, step in self._steps), default=0)

    def of(self, moments: Sequence[tuple[object, float]]) -> list[Place]:
        """Return the `Place` of each moment.

        Args:
            moments: pairs of a thread, None if unknown, and a time in the file's microseconds.
        """
        by_thread: dict[object, list[int]] = defaultdict(list)
        for i, (thread, _) in enumerate(moments):
            by_thread[thread].append(i)
        places: list[Place] = [Place(self._step(at), "other", (), (), "", "") for _, at in moments]
        for thread, wanted in by_thread.items():
            wanted.sort(key=lambda i: moments[i][1])
            around = _around(self._ranges.get(thread, []), [moments[i][1] for i in wanted])
            for i, names in zip(wanted, around, strict=True):
                places[i] = _place(names, places[i].step, self._has_modules)
        return places

    def _step(self, at: float) -> int | None:
        return next((step - self.first_step for start, end, step in self._steps if start <= at <= end), None)


def _is_range(event: Event) -> bool:
    name, category = event["name"], str(event.get("cat", ""))
    return name.startswith((_MODULE, *_BACKWARD, *_OPTIMIZER)) or category == "user_annotation"


def _around(ranges: list[_Range], moments: Sequence[float]) -> list[tuple[str, ...]]:
    """Return for each moment the names of the enclosing ranges, outermost first; `moments` must be sorted."""
    ranges.sort(key=lambda one: (one.start, -one.end))
    found, open_ranges, following = [], list[_Range](), 0
    for at in moments:
        while following < len(ranges) and ranges[following].start <= at:
            open_ranges = [one for one in open_ranges if one.end >= ranges[following].start]
            open_ranges.append(ranges[following])
            following += 1
        open_ranges = [one for one in open_ranges if one.end >= at]
        found.append(tuple(one.name for one in open_ranges))
    return found


def _place(names: Sequence[str], step: int | None, has_modules: bool) -> Place:
    modules = tuple(name.removeprefix(_MODULE) for name in names if name.startswith(_MODULE))
    own = tuple(name for name in names if not name.startswith((_MODULE, *_NOT_THE_PROGRAMS, *_BACKWARD)))
    is_backward = any(name.startswith(_BACKWARD) for name in names)
    owner, cause = "", ""
    for name in names:
        if found := _FSDP.match(name):
            owner, cause = found[2] or owner, f"FSDP {found[1]}"
            is_backward = is_backward or "backward" in found[1]
    phase: Phase = "other"
    if any(name.startswith(_OPTIMIZER) for name in names):
        phase = "optimizer"
    elif is_backward:
        phase = "recompute" if modules else "backward"
    elif modules or any("forward" in name.lower() for name in own):
        phase = "forward"
    if not has_modules:
        modules = own
    return Place(step, phase, modules, own, owner, cause)
