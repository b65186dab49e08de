"""Groups and peers of a profile's collectives: named, listed, cut short, known by their size alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.trace.trace import load
from tests.trace.importers.test_profiles import NEW, event, trace_of


def test_a_group_of_all_ranks_is_listed_without_its_ranks(tmp_path: Path) -> None:
    listed = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 8},
        {"pg_name": "5", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "ranks": [0, 1], "group_size": 2},
    ]
    cut = {**NEW, "Process Group Name": "0", "Process Group Description": "default_pg"}
    cut["Process Group Ranks"] = "[0, 1, ..., 7]"  # torch cuts the text of many ranks
    kernel = {**event("ncclDevKernel_AllGather_RING_LL(x)"), "args": cut}
    info = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": listed}
    trace = load(trace_of([kernel], tmp_path / "t", None, distributedInfo=info))
    assert trace.groups.select("group", "axis", "ranks", "size").rows() == [
        ("0", "", list(range(8)), 8),
        ("5", "tp", [0, 1], 2),
    ]
    assert trace.events["wire_bytes"].to_list() == [57344]


def test_files_that_say_the_size_of_a_group_and_not_its_name(tmp_path: Path) -> None:
    sized = {key: value for key, value in NEW.items() if not key.startswith("Process Group")}
    for rank in (0, 1, 2, 3):
        kernels = [
            {**event("ncclDevKernel_AllGather(x)", ts=100 * size), "args": {**sized, "Group size": size}}
            for size in (8, 2)
        ]
        folder = trace_of(kernels, tmp_path / "t", rank)
    trace = load(folder)
    assert trace.events.filter(rank=1).select("group", "group_size").rows() == [("2 ranks, of rank 1", 2), ("", 8)]
    assert trace.groups.filter(group="")["ranks"].to_list() == [list(range(8))]
    assert trace.skew().to_frame()["ranks"].to_list() == [[0, 1, 2, 3]]  # not of groups of unknown ranks


def test_a_size_alone_finds_the_one_listed_group_of_as_many_ranks(tmp_path: Path) -> None:
    sized = {key: value for key, value in NEW.items() if not key.startswith("Process Group")} | {"Group size": 2}
    kernel = {**event("ncclDevKernel_AllGather(x)"), "args": sized}
    listed = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_name": "5", "pg_desc": "mesh_tp", "ranks": [0, 1]},
    ]
    info = {"backend": "nccl", "rank": 0, "world_size": 4, "pg_config": listed}
    trace = load(trace_of([kernel], tmp_path / "t", None, distributedInfo=info))
    assert trace.events.select("group", "axis", "group_size").rows() == [("5", "tp", 2)]


def test_files_that_name_no_group_are_of_all_ranks_and_say_so(tmp_path: Path) -> None:
    for rank in range(2):
        folder = trace_of([event("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "Kernel")], tmp_path / "t", rank)
    trace = load(folder)
    assert trace.events["group_size"].to_list() == [8, 8]
    assert "trace.1.json names no groups: its collectives are taken to be of all 8 ranks" in trace.info.notes


@pytest.mark.parametrize(
    ("text", "step", "ranks"),
    [
        ("[1, 3, 5, ...]", 2, [1, 3, 5, 7]),
        ("", 2, [1, 3, 5, 7]),
        ("[1, 3, 6, ...]", 2, []),
        ("[1, 3, 5, ...]", -1, []),
        ("[1, 3, 5, ...]", "2", []),
    ],
)
def test_a_cut_text_of_ranks_is_filled_in_by_their_step(
    tmp_path: Path, text: str, step: int | str, ranks: list[int]
) -> None:
    known = {"Process Group Name": "5", "Process Group Ranks": text, "Group size": 4}
    kernel = event("ncclDevKernel_AllGather_RING_LL(x)")
    kernel["args"] = {**NEW, **known, "Global rank start": 1, "Global rank stride": step}
    assert load(trace_of([kernel], tmp_path / "t")).groups["ranks"].to_list() == [ranks]


@pytest.mark.parametrize(("given", "peer"), [(5, 5), ("5", 5), (1, 5), (9, None), (-1, None), (None, None)])
def test_a_peer_is_a_rank_of_the_group_or_a_place_in_it(tmp_path: Path, given: object, peer: int | None) -> None:
    kernel = event("ncclDevKernel_SendRecv(x)")
    kernel["args"] = {**NEW, "Collective name": "send", "Process Group Ranks": "[3, 5]", "Group size": 2}
    kernel["args"] |= {} if given is None else {"Dst Rank": given}
    assert load(trace_of([kernel], tmp_path / "t")).events.select("op", "peer").rows() == [("send", peer)]


@pytest.mark.parametrize(("op", "given", "taken"), [("gather", 7, 56), ("scatter", 56, 7)])
def test_a_gather_and_a_scatter_count_the_whole(tmp_path: Path, op: str, given: int, taken: int) -> None:
    """There are 8 ranks: 7 elements from or to each, 2 bytes an element."""
    kernel = event("ncclDevKernel_SendRecv(x)")
    kernel["args"] = {**NEW, "Collective name": op, "In msg nelems": given, "Out msg nelems": taken}
    assert load(trace_of([kernel], tmp_path / "t")).events["message_bytes"].to_list() == [8 * 7 * 2]
