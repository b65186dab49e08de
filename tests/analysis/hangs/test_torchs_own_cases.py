"""The cases of torch's own tests of its flight recorder: what differs between two ranks, and what may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsexplore.analysis.hangs.dump_calls import job_of_dumps
from dsexplore.analysis.hangs.hang_report import HangReport, report_of
from dsexplore.trace.importers.dumps import Dumps
from dsexplore.trace.importers.recorder_dump import dump_of


def entry(
    record: int, name: str, size: int = 4, *, out: Any = None, state: str = "completed", **more: Any
) -> dict[str, Any]:
    """An entry as those tests make it: numbers as text, one dtype for all tensors, no times."""
    return {
        "record_id": record,
        "profiling_name": f"nccl:{name}",
        "state": state,
        "process_group": ("0", "default"),
        "input_sizes": [[size, size]],
        "output_sizes": out or [[size, size]],
        "input_dtypes": "float32",
        "output_dtypes": "float32",
        "collective_seq_id": "0",
        "p2p_seq_id": "0",
        "time_created_ns": 0,
        "frames": [],
        "is_p2p": False,
        **more,
    }


def report(*of_rank: list[dict[str, Any]]) -> HangReport:
    config = {"0": {"name": "0", "desc": "default", "ranks": str(list(range(len(of_rank))))}}
    dumps = [
        dump_of(Path(f"r{rank}"), {"version": "2.8", "pg_config": config, "entries": entries}, rank)
        for rank, entries in enumerate(of_rank)
    ]
    return report_of(job_of_dumps(Dumps(tuple(dumps))))


def fields(found: HangReport) -> list[str]:
    return found.mismatches["field"].unique().to_list()


def test_what_matches_is_no_mismatch() -> None:
    coalesced = [entry(0, "broadcast"), entry(1, "broadcast"), entry(2, "coalesced", out=[[]], input_sizes=[[]])]
    uneven = [entry(0, "_reduce_oop"), entry(1, "_reduce_oop"), entry(2, "REDUCE_SCATTER_coalesced", out=[[]])]
    gathered = [entry(0, "gather", out=[[4, 4], [4, 4]])], [entry(0, "gather", out=[[]], output_dtypes="")]
    for ranks in (
        ([entry(0, "all_reduce")], [entry(0, "all_reduce")]),
        ([entry(0, "allreduce_coalesced")], [entry(0, "allreduce_coalesced")]),
        (coalesced, coalesced),
        (uneven, uneven),
        gathered,
        ([entry(0, "all_gather", 4, out=[[52]])], [entry(0, "all_gather", 6, out=[[52]])]),
    ):
        found = report(*ranks)
        assert (fields(found), found.reason) == ([], "none")


def test_type_size_and_dtype_differ() -> None:
    waiting = {"state": "scheduled"}
    for odd, field in (
        (entry(0, "all_gather", **waiting), "op"),
        (entry(0, "all_reduce", 5, **waiting), "size"),
        (entry(0, "all_reduce", input_dtypes="float16", output_dtypes="float16", **waiting), "dtype"),
    ):
        same = entry(0, "all_reduce", **waiting)
        found = report([same], [odd], [same])
        assert (found.culprits, found.reason, fields(found)) == ((1,), "mismatch", [field])


def test_parts_of_a_coalesced_call_differ() -> None:
    def rank(second: int) -> list[dict[str, Any]]:
        end = entry(2, "ALLGATHER_coalesced", out=[[]], input_sizes=[[]], state="scheduled")
        return [entry(0, "_broadcast_oop"), entry(1, "_broadcast_oop", second), end]

    found = report(rank(4), rank(5), rank(4))
    assert (found.culprits, fields(found)) == ((1,), ["size"])


def test_an_all_to_all_that_does_not_add_up_accuses_nobody() -> None:
    calls = [[entry(0, "all_to_all", size, out=[[4, 4]], state="scheduled")] for size in (4, 4, 5)]
    found = report(*calls)
    assert (found.culprits, found.suspects, fields(found)) == ((), (0, 1, 2), ["size"])
    even = [[entry(0, "all_to_all", size, out=[[out]], state="completed")] for size, out in ((2, 4), (2, 4))]
    assert fields(report(*even)) == []


def test_a_state_that_differs_is_no_mismatch_but_a_wait() -> None:
    found = report([entry(0, "all_reduce")], [entry(0, "all_reduce", state="scheduled")], [entry(0, "all_reduce")])
    assert fields(found) == []
    assert (found.culprits, found.reason) == ((1,), "device")


def test_the_end_of_a_coalesced_call_whose_members_are_lost_still_counts() -> None:
    end = entry(9, "coalesced", state="scheduled", collective_seq_id="4")
    found = report([end], [entry(8, "all_reduce", collective_seq_id="3")])
    assert (found.culprits, found.reason) == ((1,), "missing")
