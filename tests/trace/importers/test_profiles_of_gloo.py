"""Works of gloo in profiles: alone in old files, and the ends of c10d's ops in newer ones.

Modules: ``trace/importers/profiler_calls.py``, ``trace/importers/profiler_tables.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.trace.trace import load
from tests.trace.importers.test_profiles import BASE, event, trace_of


def test_old_files_of_gloo_have_works_and_no_ops(tmp_path: Path) -> None:
    """torch 1.9 wrote them so, also beside compute kernels, and beside NCCL's in one file."""
    works = [
        event("gloo:broadcast", "cpu_op", ts=16, dur=38, tid=3, External_id=165),
        event("gloo:all_reduce", "cpu_op", ts=120, dur=36, tid=4, External_id=166),
    ]
    for work in works:
        work["args"] |= {"Input Dims": [[53120]], "Input type": ["float"]}
    compute = event("void at::native::vectorized_elementwise_kernel", "Kernel", ts=30)
    trace = load(trace_of([*works, compute], tmp_path / "gloo"))
    assert trace.events.select("op", "message_bytes", "start", "end").rows() == [
        ("broadcast", 212480, BASE + 16_000, BASE + 54_000),
        ("all_reduce", 212480, BASE + 120_000, BASE + 156_000),
    ]
    assert trace.groups["timing"].to_list() == ["work"]
    kernel = event("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "Kernel", ts=300)
    both = load(trace_of([*works, kernel], tmp_path / "both"))
    assert both.events["raw_op"].to_list() == [
        "gloo:broadcast",
        "gloo:all_reduce",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
    ]


def op_and_works(
    name: str, sizes: tuple[list[int], ...], works: list[tuple[str, float, int]], ts: float = 100
) -> list[dict[str, Any]]:
    """Return an op of c10d's with the sizes of its tensors, and works of gloo's as torch 2.13 names them: begin and
    size."""
    op = event(name, "cpu_op", ts=ts, dur=40, tid=3)
    kind = "float" if name.endswith("base_") else "TensorList"
    op["args"] |= {
        "Input Dims": [size if kind == "float" else [size] for size in sizes],
        "Input type": [kind] * len(sizes),
    }
    found = [op]
    for work, begin, size in works:
        one = event(f"gloo:{work}", "user_annotation", ts=begin, dur=15, tid=4)
        one["args"] |= {"Input Dims": [[size]], "Input type": ["float"]}
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("name", "sizes", "works", "row"),
    [
        ("c10d::_allgather_base_", ([512], [64]), [("all_gather", 120, 64)], ("all_gather", 2048, 35)),
        ("c10d::_reduce_scatter_base_", ([64], [512]), [("all_reduce", 120, 512)], ("reduce_scatter", 2048, 35)),
        (
            "c10d::reduce_scatter_",
            ([64],),
            [("all_reduce", 120 + 20 * i, 64) for i in range(8)],
            ("reduce_scatter", 2048, 175),
        ),
        ("c10d::scatter_", ([64],), [("scatter", 120, 64)], ("scatter", 2048, 35)),
        ("c10d::broadcast_", ([64],), [("all_reduce", 120, 64)], ("broadcast", None, None)),  # of no known dtype
    ],
)
def test_gloos_works_end_the_op_that_they_are_for(
    tmp_path: Path, name: str, sizes: tuple[list[int], ...], works: list[tuple[str, float, int]], row: tuple[Any, ...]
) -> None:
    """Gloo reduces and scatters by all_reduces, which are none of the program's."""
    trace = load(trace_of(op_and_works(name, sizes, works), tmp_path / "t"))
    took = ((trace.events["end"] - trace.events["start"]) / 1000).to_list()
    assert (*trace.events.select("op", "message_bytes").row(0), took[0]) == row
    assert len(trace) == 1 + (row[2] is None)


def test_a_work_that_began_before_an_op_does_not_end_it(tmp_path: Path) -> None:
    works = [("all_reduce", 50.0, 64), ("all_reduce", 150.0, 64)]
    events = [*op_and_works("c10d::allreduce_", ([64],), works), *op_and_works("c10d::allreduce_", ([32],), [], 145)]
    trace = load(trace_of(events, tmp_path / "t"))
    assert trace.events.select("raw_op", "start", "end").rows() == [
        ("gloo:all_reduce", BASE + 50_000, BASE + 65_000),
        ("c10d::allreduce_", BASE + 100_000, BASE + 165_000),
        ("c10d::allreduce_", BASE + 145_000, None),
    ]
