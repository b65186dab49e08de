"""Patches that restore state of the whole process, of torch and of Python, when a simulated world is closed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from dsexplore._internal.torch_internals.dispatch import load_compiler
from dsexplore._internal.torch_internals.dtensor import CURRENT_RNG_TRACKER, release_cached_meshes
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patches
from dsexplore._internal.user_warnings import naming_the_user


def _keep_excepthook(patches: Patches, _parts: Parts) -> None:
    """Restore ``sys.excepthook`` at the end of the block."""
    patches.callback(_restore_excepthook, sys.excepthook)


def _restore_excepthook(before: Any) -> None:
    """Restore the hook for exceptions, unless the program has set its own meanwhile."""
    if getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = before


def _name_lines_of_program(patches: Patches, _parts: Parts) -> None:
    """Replace the function that shows warnings by one that names the program's line for warnings of torch."""
    patches.attribute(warnings, "_showwarnmsg", naming_the_user(warnings._showwarnmsg))  # type: ignore[attr-defined]


def _keep_rng_tracker(patches: Patches, _parts: Parts) -> None:
    """Restore DTensor's tracker of random states at the end of the block."""
    patches.attribute(CURRENT_RNG_TRACKER.owner(), CURRENT_RNG_TRACKER.attribute, CURRENT_RNG_TRACKER.get())


PATCHES: tuple[Entry, ...] = (
    Change(
        "the compiler",
        "a fake tensor mode imports it, and it must find torch's own functions",
        lambda _patches, _parts: load_compiler(),
        when="fake",
    ),
    Change("sys.excepthook", "init_process_group replaces it for good", _keep_excepthook),
    Change("warnings", "torch's warnings name lines of torch, not of the program", _name_lines_of_program),
    Change("DTensor's RNG tracker", "it would outlive the groups of the world", _keep_rng_tracker),
    Change(
        "caches of DTensor",
        "they hold meshes of the world",
        lambda patches, _parts: patches.callback(release_cached_meshes),
    ),
)
