"""The cases of torch's own tests of its flight recorder: what differs between two ranks, and what may.

Modules: ``analysis/hangs/mismatches.py``, ``analysis/hangs/dump_calls.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.analysis.hangs.dump_calls import job_of_dumps
from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.trace.importers.dumps import Dumps
from dsexplore._internal.trace.importers.op_names import plain_op
from dsexplore._internal.trace.importers.recorder_dump import dump_of

REASON = {"op": "other collective", "size": "other size", "dtype": "other dtype"}


def entry(
    record: int, name: str, size: int = 4, *, out: Any = None, state: str = "completed", **more: Any
) -> dict[str, Any]:
    """Return an entry as those tests make it: numbers as text, one dtype for all tensors, no times."""
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
        assert (found.culprits, found.reason, fields(found)) == ((1,), REASON[field], [field])


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
    assert (found.culprits, found.reason) == ((1,), "did not come")


def test_a_part_of_a_coalesced_call_that_a_ring_buffer_lost_is_not_missing() -> None:
    parts = [entry(i, "_broadcast_oop", state="scheduled", collective_seq_id="1") for i in (1, 2)]
    end = entry(3, "coalesced", out=[[]], input_sizes=[[]], state="scheduled", collective_seq_id="1")
    found = report([entry(0, "all_reduce"), *parts, end], [parts[1], end])
    assert (found.culprits, found.reason) == ((), "unknown")


def test_what_is_got_differs() -> None:
    """Size or dtype may differ, between ranks or between the input and the output of one rank."""
    waiting = {"state": "scheduled"}
    for odd, field in (
        (entry(0, "all_reduce", out=[[5, 4]], **waiting), "size"),
        (entry(0, "all_reduce", output_dtypes="float16", **waiting), "dtype"),
        (entry(0, "_all_gather_base", out=[[4, 4]], **waiting), "size"),
    ):
        name = odd["profiling_name"].removeprefix("nccl:")
        same = entry(0, name, out=[[48]] if name == "_all_gather_base" else None, **waiting)
        found = report([same], [odd], [same])
        assert (found.culprits, found.reason, fields(found)) == ((1,), REASON[field], [field])
    torn = entry(0, "all_reduce", out=[[5, 4]], **waiting)
    found = report([torn], [torn])
    assert (found.culprits, found.suspects, fields(found)) == ((), (0, 1), ["size"])


def test_the_root_of_a_gather_alone_gets_something() -> None:
    root = entry(0, "gather", out=[[4, 4], [4, 4]])
    for other in (entry(0, "gather", out=[[]], output_dtypes=""), entry(0, "gather", output_dtypes="")):
        assert fields(report([root], [other])) == []


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "gloo", "xccl", "rccl", "rcclx", "mccl", "hccl"])
def test_every_collective_of_every_library_matches_itself(backend: str) -> None:
    types = pytest.importorskip(
        "torch.distributed.flight_recorder.components.types", reason="torch 2.9 does not install its analyzer of dumps"
    )
    for name in sorted(types.COLLECTIVES):
        out = [[32]] if "gather" in name else [[8]] if "reduce_scatter" in name else None
        call = entry(0, name, out=out, profiling_name=f"{backend}:{name}")
        found = report([call], [call])
        assert (fields(found), found.reason) == ([], "none"), name
        found = report([{**call, "state": "started"}], [])
        if name in ("split", "new_window"):  # no collectives: making a communicator, or a part of memory
            assert found.reason == "none", name
        else:
            assert (found.culprits, found.waiting["op"].to_list()) == ((1,), [plain_op(name)])
            assert not plain_op(name).startswith("unknown:")


def test_ranks_may_give_their_own_groups_one_name() -> None:
    dumps = []
    for rank in (0, 1):
        config = {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
            "1": {"name": "1", "desc": "sub_pg", "ranks": f"[{rank}]"},
        }
        calls = [entry(0, "all_reduce"), entry(1, "all_reduce", 5 + rank, process_group=("1", "sub_pg"))]
        dumps.append(dump_of(Path(f"r{rank}"), {"version": "2.8", "pg_config": config, "entries": calls}, rank))
    job = job_of_dumps(Dumps(tuple(dumps)))
    assert len(job.instances) == 3
    assert fields(report_of(job)) == []


def test_a_coalesced_call_that_one_rank_does_not_make() -> None:
    first = entry(0, "all_reduce")
    parts = [entry(i, "_reduce_oop", state="scheduled", collective_seq_id="1") for i in (1, 2)]
    end = entry(3, "REDUCE_SCATTER_coalesced", out=[[]], input_sizes=[[]], state="scheduled", collective_seq_id="1")
    found = report([first], [first, *parts, end])
    assert (found.culprits, found.reason, fields(found)) == ((0,), "did not come", [])
    ended = [{**part, "state": "completed"} for part in (*parts, end)]
    assert report([first], [first, *ended]).reason == "none"
