"""What a played rank shows of its world: the groups that it is in, and the program's own source files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from dsexplore._internal.torch_internals.process_groups import registered_groups
from dsexplore._internal.torch_internals.processes import NOT_PRELOADED
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.user_code import is_user_file
from dsexplore._internal.worlds.scripts.rank_axes import ObservedGroup, progressions

_PRELOADED = ("torch.", "sympy.", "mpmath.", "networkx.", "dsexplore._internal.worlds.")


@dataclass(frozen=True)
class ObservedWorld:
    """What one rank shows of its world, as plain data.

    Attributes:
        groups: those that the rank is in, of two ranks or more, where they are laid out regularly.
        files: the sources of the program that were imported, its script first.
        modules: what torch imports only when it is needed, and this program needed.
    """

    groups: tuple[ObservedGroup, ...] = ()
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def observe_world(trace: Trace, main: object) -> ObservedWorld:
    """Describe the world that is open, after a program has run in it.

    Args:
        trace: what the program sent.
        main: its ``__main__``.
    """
    script = getattr(main, "__file__", None)
    files = [str(script)] if script else []
    files += [file for file in _files() if file not in files]
    modules = sorted(name for name in sys.modules if name.startswith(_PRELOADED) and not name.startswith(NOT_PRELOADED))
    return ObservedWorld(tuple(_groups(trace)), tuple(files), tuple(modules))


def _groups(trace: Trace) -> Iterator[ObservedGroup]:
    tables = trace.tables
    axes = dict(tables.groups.select("group", "axis").iter_rows())
    messages = set(trace.where(op=["send", "recv"]).events["group"])
    for group, ranks in list(registered_groups().items()):
        progression = progressions(list(ranks)) if dist.get_rank() in ranks else None
        if progression is not None:
            described = group.group_desc.removeprefix("mesh_") if group.group_desc.startswith("mesh_") else ""
            name = axes.get(group.group_name, "") or described.replace("default", "")
            yield ObservedGroup(name, progression, group.group_name in messages)


def _files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            yield file
