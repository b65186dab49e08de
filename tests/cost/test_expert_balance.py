"""Uneven tokens: what a trace says each rank of experts is sent, and the step of the rank that has most."""

from __future__ import annotations

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import nn

import dsexplore
from dsexplore import UsageError
from dsexplore._internal.cost.expert_balance import expert_load, imbalance, of_busiest_rank
from dsexplore._internal.cost.step.rank_program import Collective, Kernels
from dsexplore._internal.trace.trace import Trace

RANKS, WIDTH, TOKENS = 4, 1024, 4096


class Exchange(torch.autograd.Function):
    """An all_to_all whose backward is the one the other way."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, to: list[int] | None, of: list[int] | None) -> torch.Tensor:
        ctx.splits = to, of
        out = x.new_empty((sum(of) if of else x.shape[0], x.shape[1]))
        dist.all_to_all_single(out, x, of, to)
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        to, of = ctx.splits
        return Exchange.apply(gradient.contiguous(), of, to), None, None


class Experts(nn.Module):
    """Tokens to the ranks of their experts, a product there, and back."""

    def __init__(self, to: list[int] | None = None) -> None:
        super().__init__()
        self.before, self.expert = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.to = to

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = [TOKENS // RANKS] * RANKS if self.to else None
        return Exchange.apply(self.expert(Exchange.apply(self.before(x), self.to, of)), of, self.to)


def traced(to: list[int] | None = None) -> Trace:
    with dsexplore.simulate(f"ep={RANKS}", fake=True), dsexplore.commtrace(costs=True) as trace:
        model = Experts(to)
        model(torch.randn(TOKENS, WIDTH)).sum().backward()
    return trace


@pytest.fixture(scope="module")
def even() -> Trace:
    return traced()


def test_the_busiest_rank_sends_and_computes_as_many_times_more(even: Trace) -> None:
    mean, busy = even.predict(), even.predict(expert_imbalance=2.0)
    assert mean.step == even.predict(expert_imbalance=1.0).step
    sent = [one.by_axis().filter(op="all_to_all")["communication"].item() for one in (mean, busy)]
    assert 1.5 < sent[1] / sent[0] <= 2.05
    products = {
        one: dict(one.by_module().group_by("module").agg(seconds=pl.col("compute").sum()).iter_rows())
        for one in (mean, busy)
    }
    assert products[busy]["Experts.expert"] == pytest.approx(2 * products[mean]["Experts.expert"], rel=0.05)
    assert products[busy]["Experts.before"] == pytest.approx(products[mean]["Experts.before"], rel=0.05)
    assert mean.what_if(expert_imbalance=2.0).step == busy.step


def test_a_trace_with_uneven_splits_says_what_each_rank_is_sent_and_stays_as_it_was_measured() -> None:
    trace = traced([2560, 512, 512, 512])
    load = expert_load(trace)
    assert load["rank"].to_list() == [0, 1, 2, 3]
    assert load["tokens"].to_list() == [2560, 512, 512, 512]
    assert load["bytes"].to_list() == [tokens * WIDTH * 4 for tokens in (2560, 512, 512, 512)]
    assert imbalance(load) == 2.5
    assert trace.predict(expert_imbalance=2.0).step == trace.predict().step


def test_even_tokens_say_nothing(even: Trace) -> None:
    assert expert_load(even).is_empty()
    assert imbalance(expert_load(even)) == 1.0


@pytest.mark.parametrize("factor", [0.5, 0.0, float("inf"), float("nan")])
def test_the_busiest_rank_has_no_less_than_the_mean(even: Trace, factor: float) -> None:
    with pytest.raises(UsageError, match="expert_imbalance="):
        even.predict(expert_imbalance=factor)


def test_experts_of_few_tokens_take_as_long_as_they_are_read_however_many_tokens_there_are() -> None:
    def product(rows: int) -> Kernels:
        return Kernels((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), "expert", "forward", "matmul", (16, rows, 4096, 4096))

    def exchange(seq: int) -> Collective:
        return Collective(
            seq=seq,
            seconds=(1.0, 1.0, 1.0),
            stream="ep",
            link="node",
            sync="wait",
            op="all_to_all",
            axis="ep",
            message_bytes=1 << 20,
            module="",
            phase="forward",
        )

    def longer(rows: int) -> float:
        busy = of_busiest_rank([exchange(1), product(rows), exchange(2)], 2.0, ridge=250.0)[1]
        assert isinstance(busy, Kernels)
        return busy.seconds[1] / 2.0

    times = {rows: longer(rows) for rows in (4, 64, 200, 4096)}
    assert times[4] == pytest.approx(1.0, abs=0.02)
    assert times[4] < times[64] < 1.1 < times[200] < times[4096] == pytest.approx(2.0)


def test_a_cuda_graph_waits_for_no_cpu_and_takes_what_its_kernels_do() -> None:
    with dsexplore.simulate("ep=4", fake=True), torch.no_grad(), dsexplore.commtrace(costs=True) as trace:
        x, weight = (torch.empty(size, 256, dtype=torch.bfloat16) for size in (8, 256))
        for _ in range(20):
            x = torch.relu(x @ weight)
        dist.all_reduce(x)
        trace.step()
    eager, graph = trace.predict(), trace.predict(cuda_graphs=True)
    assert eager.idle.expected > 0.2 * eager.step.expected
    assert graph.idle.high == 0
    assert graph.compute.expected == pytest.approx(eager.compute.expected)
    assert graph.step.expected == pytest.approx(graph.compute.expected + graph.exposed.expected)
    assert eager.what_if(cuda_graphs=True).step == graph.step
