"""``expect_comms``: passes on what was said, and names the lines of what was not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from dsexplore import expect_comms
from dsexplore._internal.errors import ExpectationError, UsageError
from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with simulate(8, "dp=2,tp=4") as mesh:
        yield mesh


def gather(mesh: DeviceMesh, axis: str, times: int) -> None:
    for _ in range(times):
        x = torch.ones(16)
        dist.all_gather_into_tensor(torch.empty(16 * mesh[axis].size()), x, group=mesh[axis].get_group())


def test_what_was_said_passes(mesh: DeviceMesh) -> None:
    gathers = [
        {"count": 4, "bytes": 4 * 256, "axis": "tp"},
        {"count": 1, "wire_bytes": 64, "axis": "dp", "phase": "other"},
    ]
    with expect_comms(all_reduce=2, all_gather=gathers, broadcast=0, no_implicit_redistribute=True) as trace:
        gather(mesh, "tp", 4)
        gather(mesh, "dp", 1)
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
    assert len(trace) == 7


def test_silence_can_be_expected() -> None:
    with simulate(2), expect_comms():
        torch.ones(2) + 1


def test_it_decorates(mesh: DeviceMesh) -> None:
    @expect_comms(all_reduce=1)
    def program(times: int) -> None:
        for _ in range(times):
            dist.all_reduce(torch.ones(1))

    program(1)
    with pytest.raises(ExpectationError):
        program(2)


def line_of(text: str) -> int:
    """Return the number of the line of this file that ends with a comment."""
    with open(__file__, encoding="utf-8") as file:  # noqa: PTH123 # one line of it
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def test_the_table_and_the_lines(mesh: DeviceMesh) -> None:
    with (
        pytest.raises(ExpectationError) as failure,
        expect_comms(all_reduce=2, all_gather={"count": 4, "bytes": 1 << 20, "axis": "tp"}, reduce=0),
    ):
        dist.all_reduce(torch.ones(256))
        dist.all_reduce(torch.ones(256))
        gather(mesh, "dp", 3)
        dist.broadcast(torch.ones(256), 0)  # a broadcast that nobody expects
    lines = str(failure.value).splitlines()
    table = [re.split(r" {2,}", line.strip()) for line in lines if line]
    assert ["op", "expected", "seen"] in table
    assert ["all_reduce", "2", "2"] in table
    assert ["✗", "all_gather", "4 · bytes 1,048,576 (1 MiB) · axis=tp", "0 · bytes 0 (0 B)"] in table
    assert ["✗", "all_gather", "none", "3"] in table
    assert ["✗", "broadcast", "none", "1"] in table
    assert ["reduce", "0", "0"] in table
    place = f"test_expect.py:{line_of('a broadcast that nobody expects')}"
    assert any("broadcast" in line and place in line and "1 KiB" in line for line in lines)
    assert any(line.startswith("3 ×  all_gather") and "axis dp" in line for line in lines)
    assert not any("all_reduce" in line and "test_expect.py" in line for line in lines)


def test_surplus_shows_all_lines_of_that_op(mesh: DeviceMesh) -> None:
    with (
        pytest.raises(ExpectationError, match=r"(?s)all_reduce  1 +2.*2 ×  all_reduce .*test_expect\.py"),
        expect_comms(all_reduce=1),
    ):
        for _ in range(2):
            dist.all_reduce(torch.ones(1))


def test_implicit_redistributes(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh["tp"], [Shard(0)])
    with expect_comms(all_gather=1, no_implicit_redistribute=True):
        x.redistribute(mesh["tp"], [Replicate()])
    with expect_comms(all_gather=1):
        torch.mm(x, x)
    with (
        pytest.raises(ExpectationError, match=r"(?s)✗ +implicit redistribute +none +1.*aten\.mm S\(0\)→R \(implicit\)"),
        expect_comms(all_gather=1, no_implicit_redistribute=True),
    ):
        torch.mm(x, x)


def test_an_expectation_without_sizes_wants_some(mesh: DeviceMesh) -> None:
    with expect_comms(all_gather={"axis": "tp"}):
        gather(mesh, "tp", 3)
    with pytest.raises(ExpectationError, match=r"✗ +all_gather +axis=tp +0"), expect_comms(all_gather={"axis": "tp"}):
        pass


def test_the_block_s_own_exception_comes_first(mesh: DeviceMesh) -> None:
    with pytest.raises(RuntimeError, match="mine"), expect_comms(all_reduce=1):
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (
            {"allreduce": 1},
            r"expect_comms\(allreduce=…\): no such op \(did you mean 'all_reduce'\?\); they are",
        ),
        ({"all_reduce": -1}, "count of all_reduce is -1: give a whole number"),
        ({"all_reduce": True}, r"expect_comms\(all_reduce=True\): give a count"),
        ({"all_reduce": "two"}, r"expect_comms\(all_reduce='two'\): give a count"),
        ({"all_reduce": {"count": 1.5}}, "count of all_reduce is 1.5"),
        (
            {"all_reduce": {"color": "red"}},
            r"expect_comms\(all_reduce=dict\(color=…\)\): no such key; they are count",
        ),
        ({"all_reduce": {"phase": "bakward"}}, r"where\(phase='bakward'\): no such phase"),
    ],
)
def test_a_slip_of_the_pen_is_an_error_before_the_block_runs(ops: dict[str, Any], message: str) -> None:
    ran = False
    with pytest.raises(UsageError, match=message), expect_comms(**ops):
        ran = True
    assert not ran
