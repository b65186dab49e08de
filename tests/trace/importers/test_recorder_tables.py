"""Dumps of the flight recorder become tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.trace.importers.recorder_dump import dump_of
from dsexplore._internal.trace.importers.recorder_tables import tables_of


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("default_pg", ""),
        ("undefined", ""),
        ("", ""),
        ("mesh_dp", "dp"),
        ("the experts", "the experts"),
    ],
)
def test_a_group_has_the_axis_of_its_mesh_or_the_name_that_the_program_gave_it(description: str, axis: str) -> None:
    entry = {
        "record_id": 0,
        "process_group": ["5", description],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "state": "completed",
    }
    groups = {"5": {"name": "5", "desc": description, "ranks": "[0, 1]"}}
    tables = tables_of(dump_of(Path("rank_0"), {"version": "2.10", "pg_config": groups, "entries": [entry]}, 0), 2)
    assert tables.events["axis"].to_list() == [axis]
    assert tables.groups.select("group", "axis", "ranks").rows() == [("5", axis, [0, 1])]
