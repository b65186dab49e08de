"""Published tables that examine the predicted collectives: none of them has points in a cluster file.

Modules: ``cost/collectives/collective_duration.py``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.trace.collectives import OPS
from dsexplore.cost import Cluster, known_clusters

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
KEYS = {"cluster", "op", "nodes", "ranks_per_node", "bytes", "microseconds", "launch", "software", "source", "date"}


def tables(name: str) -> list[dict[str, Any]]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))["table"]


@pytest.mark.parametrize("name", ["collectives.toml", "unseen_collectives.toml"])
def test_each_table_has_its_source_and_as_many_times_as_sizes(name: str) -> None:
    for table in tables(name):
        assert table.keys() >= KEYS
        assert table["source"]
        assert table["op"] in OPS
        assert table["launch"] in ("one process", "a process per GPU")
        assert len(table["bytes"]) == len(table["microseconds"])
        assert table["bytes"] == sorted(set(table["bytes"]))


def test_no_table_of_the_examination_has_points_in_a_cluster_file() -> None:
    measured = [table for name in known_clusters() for table in Cluster.load(name).measured]
    for table in tables("unseen_collectives.toml"):
        times = {round(microseconds * 1e-6, 9) for microseconds in table["microseconds"]}
        for known in measured:
            assert not known.source.startswith(table["source"])
            same = (known.op, known.nodes, known.ranks_per_node) == (
                table["op"],
                table["nodes"],
                table["ranks_per_node"],
            )
            if same:
                shared = times & {round(seconds, 9) for seconds in known.seconds}
                assert len(shared) < max(2, len(times) // 4), f"{table['source']} is in a cluster file: {known.source}"
