"""The process's recorder; tests may replace it by one with another clock."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.errors import UsageError

_recorder = Recorder()


def is_recording() -> bool:
    """Return True if a recording is open in this process."""
    return bool(_recorder.recordings)


def recorded_modules() -> list[ModuleEntry]:
    """Return the modules called since the first open recording began, parents before children."""
    return list(_recorder.modules.in_order())


def running_module() -> ModuleEntry | None:
    """Return the module that runs in this thread; in backward, the module that made the running node in forward."""
    return _recorder.modules.running()


def is_in_forward() -> bool:
    """Return True if a module's forward runs in this thread, including recomputation in backward."""
    return _recorder.modules.in_forward()


def note_switched_off(op: str, process_group: Any, comm_switch: str) -> None:
    """Add a collective that a switch of the comm layer suppressed to every open recording."""
    if is_recording():
        _recorder.add_switched_off(op, process_group, comm_switch)


def use(recorder: Recorder) -> None:
    """Make a recorder the one of this process.

    Raises:
        UsageError: a recording is open.
    """
    global _recorder
    if is_recording():
        raise UsageError("a recording is open: end it before another recorder takes its place")
    _recorder = recorder


def in_use() -> Recorder:
    """Return the recorder of this process."""
    return _recorder
