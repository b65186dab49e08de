"""Read execution traces of torch (``ExecutionTraceObserver``), from which Chakra's are made: ops without times.

A file is JSON with ``nodes``. Each is an op or a named range with its number, the number of the node around it
(``ctrl_deps``), shapes and types of its inputs, and attributes. They are converted into events of a profiler trace,
with the node's number as time, so that the code for profiler traces reads the collectives; the times are removed in the
end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.event_kinds import Event, is_kept
from dsexplore._internal.trace.importers.kernel_launches import DESCRIPTION
from dsexplore._internal.trace.importers.packed import content_of
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.tables import Tables

_ARGUMENTS = {
    "collective_name": "Collective name",
    "dtype": "dtype",
    "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems",
    "global_rank_start": "Global rank start",
    "global_rank_stride": "Global rank stride",
    "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description",
    "pg_size": "Group size",
}
"""{attribute of a node: argument of the profiler's event}."""
_GROUPS = "## process_group:init ##"
_ROOTS = "[pytorch|profiler|execution_trace|"
"""Start of the names of the nodes that stand for the process and its threads."""
_NO_TIMES = "is an execution trace: it has the order of its collectives, but no times"


def read_execution_trace(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is truncated, damaged or not an execution trace.
    """
    try:
        content = json.loads(content_of(file), strict=False)
        nodes = [node for node in content["nodes"] if isinstance(node, dict) and isinstance(node.get("id"), int)]
        unnamed = [node["id"] for node in nodes if not isinstance(node.get("name"), str)]
        if unnamed:
            raise ValueError(f"node {unnamed[0]} has no name")
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    ends = _ends(nodes)
    events = [
        _event(node, ends)
        for node in nodes
        if is_kept(_category(node), node["name"]) and not node["name"].startswith(_ROOTS)
    ]
    groups = next((node for node in nodes if node.get("name") == _GROUPS), None)
    listed = {"pg_config": _listed_groups(groups)} if groups else {}
    return ProfilerFile(file, events=tuple(events), distributed=listed, base=0, has_times=False)


def without_times(tables: Tables, trace: ProfilerFile) -> Tables:
    """Return the tables of an execution trace without the times, which are numbers of nodes, and with a note on it."""
    unknown = pl.lit(None, pl.Int64())
    return replace(
        tables,
        events=tables.events.with_columns(start=unknown, end=unknown, waited=unknown),
        info=replace(tables.info, notes=(f"{trace.file.name} {_NO_TIMES}", *tables.info.notes)),
    )


def _ends(nodes: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return {number of a node: number of the last node inside it, or its own}; inner nodes have higher numbers."""
    ends: dict[int, int] = {node["id"]: node["id"] for node in nodes}
    for node in sorted(nodes, key=lambda node: -node["id"]):
        parent = node.get("ctrl_deps")
        if isinstance(parent, int) and parent in ends and parent < node["id"]:
            ends[parent] = max(ends[parent], ends[node["id"]])
    return ends


def _category(node: Mapping[str, Any]) -> str:
    """Return the category that the profiler gives to events of the node's name."""
    return "cpu_op" if "::" in node["name"] or node["name"] == DESCRIPTION else "user_annotation"


def _event(node: Mapping[str, Any], ends: Mapping[int, int]) -> Event:
    """Return a node as an event of a profiler trace, with its number as time."""
    attributes = {
        attribute["name"]: attribute.get("value")
        for attribute in node.get("attrs") or ()
        if isinstance(attribute, dict) and "name" in attribute
    }
    number = int(node["id"])
    arguments = {name: attributes[key] for key, name in _ARGUMENTS.items() if key in attributes}
    inputs = node["inputs"] if isinstance(node.get("inputs"), dict) else {}
    return {
        "ph": "X",
        "cat": _category(node),
        "name": node["name"],
        "pid": 0,
        "tid": str(attributes.get("tid", 0)),
        "ts": number,
        "dur": ends[number] - number + 0.5,  # it ends after the last node inside it, and before the next one begins
        "args": {**_tensors(inputs), **_name_before_torch_2_5(node, inputs), **arguments},
    }


def _tensors(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return shapes and types of the input tensors as the profiler writes them; empty without tensors."""
    dims, dtypes = [], []
    for shape, kind in zip(inputs.get("shapes") or (), map(str, inputs.get("types") or ()), strict=False):
        if "Tensor(" not in kind:
            continue
        dims.append(shape[0] if kind.startswith("GenericList[GenericList") and shape else shape)
        dtypes.append(kind.rpartition("Tensor(")[2].partition(")")[0])
    return {"Input Dims": dims, "Input type": dtypes} if dims else {}


def _name_before_torch_2_5(node: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of the collective as an argument; files of torch before 2.5 have it among the node's inputs."""
    if node.get("name") != DESCRIPTION:
        return {}
    pairs = zip(inputs.get("values") or (), inputs.get("types") or (), strict=False)
    name = next((value for value, kind in pairs if kind == "String" and isinstance(value, str)), "")
    return {"Collective name": name} if name and not name.isdecimal() else {}


def _listed_groups(node: Mapping[str, Any]) -> list[Any]:
    """Return the groups that torch lists as JSON in a node of their own; empty if they cannot be read."""
    try:
        listed = json.loads(node["inputs"]["values"][0])
    except (ValueError, KeyError, TypeError, IndexError):
        return []
    return listed if isinstance(listed, list) else []
