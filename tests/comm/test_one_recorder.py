"""A log and a trace say the same about a call, since the log is a recording of labeled calls.

Modules: ``comm/logs/log_records.py``, ``comm/logs/sent_calls.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as td
from IPython.core.interactiveshell import InteractiveShell
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

import dsexplore.comm as dist
from dsexplore._internal.capture.collectives import observed_op
from dsexplore._internal.capture.collectives.issued_collective import current
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder_in_use import is_recording
from dsexplore._internal.comm.logs.sent_calls import numbered
from dsexplore._internal.trace import schema
from dsexplore._internal.worlds.simulate import simulate
from tests.comm.every_op import GLOO_SWAPS_LISTS, every_op

Ranks = Callable[..., list[Any]]
_OF_THE_CALL = {"step", "seq", "source", "batch", "start", "end", "waited", "group_seq"}
_SAID = [column for column in schema.EVENTS if column not in _OF_THE_CALL]


@pytest.fixture
def alone(gloo: None) -> Iterator[None]:
    """Yield a gloo world of one rank in this process, whose log ends before it does."""
    yield
    dist.configure(enabled=False)


def test_nothing_of_a_simulated_world_has_a_time_a_bandwidth_or_a_straggler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @dist.timed_op
    def ring_sum(tensor: torch.Tensor) -> None:
        td.all_reduce(tensor)

    with simulate(mesh="dp=2,tp=4") as mesh:
        dist.configure(enabled=True)
        group = mesh.get_group("tp")
        one, four = torch.ones(1024), [torch.ones(1024) for _ in range(4)]
        for module in (dist, td):
            module.all_reduce(one, group=group)
            module.all_reduce(one, group=group, async_op=True).wait()
            module.reduce_scatter(one, four, group=group, async_op=True).wait()
            module.isend(one, 1, group=group).wait()
            module.recv(one, 1, group=group)
            module.barrier()
            module.all_gather_object([None] * 8, "an object")
        dist.all_reduce_coalesced(four, group=group)
        ring_sum(one)
        for handle in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, 1), dist.P2POp(dist.irecv, one, 1)]):
            handle.wait()
        result = dist.comms_logger.log_all(show_straggler=True, return_dict=True)
        raw = dist.comms_logger.get_raw_data()
        table = dist.comms_logger.to_frame()
        trace = dist.comms_logger.trace()
    assert table["count"].sum() == len(dist.comms_logger.records) == 7 + 8 + 4 + 1 + 2
    assert all(figures[1:] == [[], [], []] for sizes in raw.values() for figures in sizes.values())
    assert set(table["timed"]) == {0}
    assert table.select("total_ms", "mean_ms", "algbw_gb_per_s", "busbw_gb_per_s").null_count().row(0) == (
        (table.height,) * 4
    )
    shown = capsys.readouterr().out.splitlines()
    lines, said = shown[1 : table.height + 1], shown[table.height + 1 :]
    assert all(line.split()[-4:] == ["–"] * 4 for line in lines)
    assert [line.partition(",")[0] for line in said] == ["A simulated trace has no times"]
    assert result is not None
    assert result["straggler_analysis"] == {}
    assert trace.info.simulated
    assert trace.events.filter(group_size=4)["axis"].unique().to_list() == ["tp"]
    assert trace.events.select("start", "end").null_count().row(0) == (len(trace),) * 2


def test_a_cell_has_the_same_name_in_a_log_and_in_a_trace(shell: InteractiveShell) -> None:
    def run(cell: str) -> None:
        assert shell.run_cell(cell, store_history=True).success

    with simulate(world_size=4):
        run("import torch, dsexplore.comm as dist\nfrom dsexplore._internal.capture.record import record")
        run("dist.configure(enabled=True)")
        run("with record() as trace:\n    1\n    2\n    dist.all_reduce(torch.ones(2))")
        (logged,) = dist.comms_logger.records
        assert logged.source == "In[3]:4"
        assert dist.comms_logger.trace().events["source"].to_list() == ["In[3]:4"]
        assert shell.user_ns["trace"].events["source"].to_list() == ["In[3]:4"]


@pytest.mark.usefixtures("alone")
def test_a_verbose_log_prints_a_line_for_each_message_and_one_for_objects(capsys: pytest.CaptureFixture[str]) -> None:
    dist.configure(enabled=True, verbose=True)
    dist.all_gather_object([None], "an object")
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    dist.configure(enabled=False, verbose=False)
    printed = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["all_gather_object", "all_reduce", "all_reduce"]


class CountsPickling:
    """An object that counts how often it is pickled."""

    def __init__(self) -> None:
        self.times = 0

    def __reduce__(self) -> tuple[Any, ...]:
        self.times += 1
        return str, ("pickled",)


@pytest.mark.usefixtures("alone")
def test_objects_are_pickled_once_and_counted_by_what_is_sent() -> None:
    thing, gathered = CountsPickling(), [None]
    dist.configure(enabled=True)
    with record() as trace:
        dist.all_gather_object(gathered, thing)
    assert thing.times == 1
    (line,) = dist.comms_logger.records
    assert (line.op, line.call.spelling.name) == ("all_gather", "all_gather_object")
    assert line.bytes == trace.events["message_bytes"].sum() > 8
    assert trace.events["is_object"].all()
    assert line.times == (trace.events["start"].min(), trace.events["end"].max())


def logged_and_traced() -> list[Any]:
    with record() as of_torch:
        every_op(td)
    dist.configure(enabled=True)
    every_op(dist)
    with record() as beside:
        every_op(dist)
    logged = dist.comms_logger.trace()
    dist.configure(enabled=False)
    count = len(of_torch)
    assert logged.events["source"].to_list()[count:] == beside.events["source"].to_list()
    times = [trace.events.select("start", "end").rows() for trace in (logged, beside)]
    assert times[0][count:] == times[1]
    assert all(start is not None and start < end for start, end in times[0])
    return [trace.events.select(_SAID).rows() for trace in (of_torch, beside)] + [
        logged.events.select(_SAID).rows()[:count],
        logged.events.select(_SAID).rows()[count:],
    ]


@pytest.mark.processes
def test_a_logged_call_is_what_a_trace_has_of_torchs(ranks: Ranks) -> None:
    """Those that pass the kernels by, and those that do not."""
    for of_torch, *others in ranks(2, logged_and_traced):
        assert len(of_torch) == 15 + GLOO_SWAPS_LISTS
        assert all(rows == of_torch for rows in others)


class Reducing(torch.nn.Module):
    """A module that communicates in its forward, and in its backward."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Reduce the inputs over the group."""
        inputs = inputs.clone()
        dist.all_reduce(inputs, group=self.group)
        return inputs * self.weight


def test_logged_calls_have_module_axis_and_phase() -> None:
    with simulate(world_size=4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Sequential(Reducing(mesh.get_group("tp")))
        model[0].weight.register_post_accumulate_grad_hook(
            lambda weight: dist.all_reduce(weight.grad, group=mesh.get_group("dp"), log_name="gradients")
        )
        dist.configure(enabled=True)
        model(torch.ones(4)).sum().backward()
        events = dist.comms_logger.trace().events
    assert events.select("axis", "trigger", "phase", "cause").rows() == [
        ("tp", "Sequential.0", "forward", ""),
        ("dp", "Sequential.0", "backward", "gradients"),
    ]
    modules = dist.comms_logger.trace().modules["module"].to_list()
    assert modules == ["Sequential", "Sequential.0"]


@pytest.mark.usefixtures("alone")
def test_the_log_goes_on_where_it_was_turned_off() -> None:
    for _ in range(2):
        dist.configure(enabled=True)
        dist.all_reduce(torch.ones(2))
        dist.configure(enabled=False)
        dist.all_reduce(torch.ones(2))
        assert not is_recording()
    trace = dist.comms_logger.trace()
    assert trace.events["seq"].to_list() == [0, 1]
    assert trace.groups["group"].to_list() == ["0"]
    assert dist.get_comm_operation_count() == 2


@pytest.mark.usefixtures("alone")
def test_what_is_not_wanted_is_in_a_trace_alone_whoever_issued_it() -> None:
    dist.configure(enabled=True, prof_all=False, prof_ops=["barrier"])
    with record() as trace:
        td.all_reduce(torch.ones(2))
        td.barrier()
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    logged = [(record.name, record.layer) for record in dist.comms_logger.records]
    assert logged == [("barrier", "torch.distributed"), ("barrier", "dsexplore.comm")]
    assert trace.events["message_bytes"].to_list() == [8, 0, 12, 0]


@pytest.mark.usefixtures("alone")
def test_the_log_has_what_reached_torch_without_it() -> None:
    model = torch.nn.Linear(4, 2)
    dist.configure(enabled=True)
    with record() as trace:
        dist.all_reduce(torch.ones(3))
        td.all_reduce(torch.ones(2), op=td.ReduceOp.MAX)
        td.reduce_scatter(torch.ones(2), [torch.ones(2)], op=td.ReduceOp.MIN)
        functional.wait_tensor(functional.all_reduce(torch.ones(5), "max", td.group.WORLD))
        gathered = [None]
        td.all_gather_object(gathered, "an object")
        with _coalescing_manager(td.group.WORLD):
            td.all_reduce(torch.ones(1))
            td.all_reduce(torch.ones(3))
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp(torch.ones(1, 4)).sum().backward()
    records = dist.comms_logger.records
    logged = [(record.op, record.bytes) for record in records]
    assert logged == trace.events.select("op", "message_bytes").rows()
    assert [record.layer for record in records] == ["dsexplore.comm"] + ["torch.distributed"] * (len(trace) - 1)
    assert [record.reduction for record in records[:4]] == ["SUM", "MAX", "MIN", "MAX"]
    assert [record.source for record in records] == trace.events["source"].to_list()
    members = [record for record in records if record.bytes in (4, 12) and record.batch is not None]
    assert [record.share for record in members] == [0.25, 0.75]
    assert dist.comms_logger.trace().events.drop("step").equals(trace.events.drop("step"))


@pytest.mark.usefixtures("alone")
def test_the_logs_own_traffic_is_not_in_it() -> None:
    dist.configure(enabled=True)
    dist.all_reduce(torch.ones(3))
    dist.log_summary(show_straggler=True)
    assert dist.get_comm_operation_count() == 1


@pytest.mark.usefixtures("alone")
def test_what_is_switched_off_or_sent_to_one_rank_is_not_matched_across_ranks() -> None:
    dist.configure(enabled=True)
    dist.all_reduce(torch.ones(2))
    with pytest.warns(UserWarning, match="broadcast is off"), dist.comm_off("broadcast"):
        dist.broadcast(torch.ones(2), 0)
    dist.comms_logger.append("send", "send", latency=1.0, msg_size=8)
    assert len(dist.comms_logger.records) == 3
    assert [(series, number) for series, number, _ in numbered(dist.comms_logger.records, {})] == [(("0", (0,)), 0)]


@pytest.mark.usefixtures("alone")
def test_a_handle_returns_what_torchs_methods_do() -> None:
    dist.configure(enabled=True)
    handle = dist.all_reduce(torch.ones(2), async_op=True)
    assert handle.wait() is True
    assert handle.is_success() is True
    assert [tensor.tolist() for tensor in handle.result()] == [[1.0, 1.0]]
    with pytest.raises(AttributeError, match="no_such_method"):
        handle.no_such_method  # noqa: B018


@pytest.mark.usefixtures("alone")
def test_an_interrupted_call_leaves_no_label_and_passes_no_later_kernel_by() -> None:
    @dist.timed_op
    def interrupted(tensor: torch.Tensor) -> None:
        raise KeyboardInterrupt

    def interrupting(*_: Any) -> None:
        raise KeyboardInterrupt

    dist.configure(enabled=True)
    with pytest.raises(KeyboardInterrupt):
        interrupted(torch.ones(1))
    assert current.label is None
    with pytest.raises(KeyboardInterrupt):
        observed_op.pass_kernels_by(interrupting)
    with record() as trace:
        td.all_reduce(torch.ones(1))
    assert len(trace) == 1


@pytest.mark.usefixtures("alone")
def test_an_interrupted_trace_says_what_it_kept_though_the_log_is_on() -> None:
    dist.configure(enabled=True)
    with pytest.raises(KeyboardInterrupt) as caught, record():
        dist.all_reduce(torch.ones(1))
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["The 1 collectives recorded until then are kept in the trace."]


@pytest.mark.usefixtures("alone")
def test_compiled_code_stays_compiled_with_the_log_on() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def step(inputs: torch.Tensor) -> torch.Tensor:
        doubled = inputs * 2
        dist.all_reduce(doubled)
        return doubled + 1

    dist.configure(enabled=True)
    assert step(torch.ones(2)).tolist() == [3.0, 3.0]
    assert counter.frame_count == 1
    torch._dynamo.reset()
