"""The findings: each rule on a simulated program that has what it finds, and on the same with the change made.

The headline of these programs is tested here too, as it takes long to trace them.
"""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path

import planted
import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.analysis.findings.all_rules import RULES
from dsexplore._internal.analysis.findings.finding import COLUMNS
from dsexplore._internal.worlds import demo

EXACT = [
    "all_reduce_of_shards",
    "freed_too_soon",
    "fsdp1_freed_too_soon",
    "fsdp1_reduced_in_fp32",
    "fsdp_reduced_each_microbatch",
    "gathered_again",
    "implicit_redistributes",
    "optimizer_reduces",
    "reduced_each_microbatch",
    "reduced_in_fp32",
    "siblings_reduce",
]
"""The programs whose change spares exactly what the finding says, in wire bytes."""


def sent(trace: dsexplore.Trace) -> int:
    """Wire bytes of the gradients, activations and parameters of a step."""
    return int(trace.where(phase=["forward", "backward", "optimizer", "other"]).events["wire_bytes"].sum())


def test_every_rule_has_a_program() -> None:
    simulated = {rule for rule, _ in planted.PROGRAMS.values()}
    elsewhere = {"late_rank", "value_errors"}  # in times and values alone: test_late_ranks.py, test_advice.py
    assert simulated | elsewhere == RULES.keys()
    folder = Path(dsexplore.__file__).parent / "_internal" / "analysis" / "findings"
    defined = {
        node.name
        for path in folder.glob("*_rules.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Iterator[Finding]"
    }
    assert {name for name in defined if not name.startswith("_")} == RULES.keys()


@pytest.mark.parametrize("name", planted.PROGRAMS)
def test_an_oddity_is_found_and_in_the_headline_and_its_change_silences_both(name: str) -> None:
    rule = planted.PROGRAMS[name][0]
    trace, changed = planted.trace_of(name, True), planted.trace_of(name, False)
    found = trace.findings()
    assert found[0].rule == rule, "the planted oddity comes first"
    assert list(changed.findings()) == [], "the changed program has nothing to find"
    first = found[0]
    assert first.why
    assert first.change
    assert first.source.rpartition(":")[0].endswith("planted.py")
    rows = found.trace(0)
    assert len(rows) == first.count == len(first.rows)
    assert rows.events["wire_bytes"].sum() == first.wire_bytes
    assert rows.events["message_bytes"].sum() == first.message_bytes
    if name in EXACT:
        assert sent(trace) - sent(changed) == sum(one.spare_bytes for one in found) > 0
    named = [one for one in trace.headline().sentences if one.about == "finding"]
    assert len(named) == 1
    assert first.why in named[0].text
    assert set(named[0].rows.tolist()) == set(first.rows.tolist())
    assert [one.about for one in changed.headline().sentences] == ["axes", "module"]


def test_the_change_of_fsdp1_is_one_that_it_has() -> None:
    changes = {
        "fsdp1_freed_too_soon": "FullyShardedDataParallel(Net.layers.2, …, sharding_strategy=ShardingStrategy.SHARD_",
        "fsdp1_reduced_each_microbatch": "with model.no_sync():",
        "fsdp1_reduced_in_fp32": "MixedPrecision(reduce_dtype=torch.bfloat16)",
    }
    for name, change in changes.items():
        found = planted.trace_of(name, True).findings().to_frame()
        assert found["change"][0].startswith(change)


def test_what_the_optimizer_may_reduce_once_is_sought_in_the_optimizer_alone() -> None:
    tables = planted.trace_of("optimizer_reduces", True).tables
    in_forward = tables.events.with_columns(phase=pl.lit("forward"))
    rules = {one.rule for one in dsexplore.Trace(replace(tables, events=in_forward)).findings()}
    assert "optimizer_reduces" not in rules


def test_of_a_redistribute_without_a_known_cause_none_is_said() -> None:
    tables = planted.trace_of("implicit_redistributes", True).tables
    unknown = dsexplore.Trace(replace(tables, events=tables.events.with_columns(cause=pl.lit(""))))
    assert unknown.findings()[0].why.endswith("that the program did not ask for")


@pytest.mark.parametrize("ended", [True, False])
def test_only_what_lies_in_one_ended_step_is_called_microbatches(ended: bool) -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        model = DistributedDataParallel(planted.Net())
        for _ in range(2):
            for _ in range(3):
                model(planted.batch()).sum().backward()
            if ended:
                trace.step()
    why = [one.why for one in trace.findings()]
    assert why == (["3 all_reduces in a step, where the gradients are reduced after each of its microbatches"] * ended)


@pytest.mark.parametrize("kind", ["two inputs", "changed input", "one input"])
def test_siblings_are_those_that_read_one_tensor(kind: str) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.up, self.down = (torch.nn.Linear(planted.D, planted.D) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.qkv(x)
            if kind == "two inputs":  # as in Megatron's plan
                x = x + self.out(q)
            elif kind == "changed input":
                x = x.clone()
                x.mul_(2)
            return self.down(self.up(x) * q)

    with dsexplore.commtrace(world_size=4) as trace:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        model = torch.nn.Sequential(Block(), Block())
        for block in model:
            whole = {"qkv": ColwiseParallel(), "up": ColwiseParallel()}
            rows = {"out": RowwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh, {**whole, **rows}, src_data_rank=None)
        model(planted.batch()).sum().backward()
    assert [one.rule for one in trace.findings()] == ["siblings_reduce"] * (kind == "one input")


def test_what_the_program_gathers_itself_is_not_laid_to_ops_that_need_whole_tensors() -> None:
    own, asked = (planted.trace_of(name, True).findings()[0] for name in ("parts_gathered", "optimizer_gathers"))
    assert own.why.endswith("each rank updates its part, and the program gathers the parts of all ranks")
    assert "one all_gather_into_tensor" in own.change
    assert asked.why.endswith("the update needs whole tensors, and gathers shards for every op that reads them")
    assert "full_tensor" in asked.change


def test_findings_are_a_table_and_text() -> None:
    found = planted.trace_of("small_fsdp", True).findings()
    frame = found.to_frame()
    assert dict(frame.schema) == COLUMNS
    assert frame["rule"].to_list() == ["small_fsdp", "freed_too_soon"]
    assert frame["module"].to_list() == ["Net.layers.*.0", "Net.layers.2.0"]
    text = found._repr_mimebundle_()["text/plain"]
    assert text.startswith("Findings: 2\n  6 all_gathers of 96 B for an FSDP group of its own")
    assert f"{6 * 96} B on the wire per rank and step" in text
    assert "try: leave out fully_shard(Net.layers.*.0)" in text
    assert repr(found) == "<Findings: 2 of small_fsdp, freed_too_soon>"
    assert len(found[:1]) == 1


def test_no_events_and_no_findings_say_so() -> None:
    assert list(dsexplore.Trace().findings()) == []
    text = planted.trace_of("small_fsdp", False).findings()._repr_mimebundle_()
    assert text["text/plain"].startswith("Findings: none.")
    assert "No rule found anything" in text["text/html"]


def test_counts_are_per_rank_and_step() -> None:
    one = planted.trace_of("freed_too_soon", True)
    with dsexplore.commtrace(world_size=4, rank=1) as other:
        planted.PROGRAMS["freed_too_soon"][1](True)
    both = dsexplore.Trace.merge([one, other]).findings()[0]
    alone = one.findings()[0]
    assert (both.count, both.wire_bytes, both.spare_bytes) == (alone.count, alone.wire_bytes, alone.spare_bytes)
    assert len(both.rows) == 2 * len(alone.rows)
    with dsexplore.commtrace(world_size=4) as twice:
        model = planted.Net()
        planted.sharded(model, keep_last=False)
        model(planted.batch()).sum().backward()
        twice.step()
        model(planted.batch()).sum().backward()
    assert twice.findings()[0].count == alone.count
    assert twice.findings()[0].wire_bytes == alone.wire_bytes


def test_two_steps_that_are_marked_are_no_microbatches() -> None:
    def step(model: object) -> None:
        model(planted.batch()).sum().backward()  # type: ignore[operator]  # a module

    with dsexplore.commtrace(world_size=4) as trace:
        model = planted.DistributedDataParallel(planted.Net())
        step(model)
        trace.step()
        step(model)
    assert list(trace.findings()) == []


@pytest.mark.parametrize("wrap", ["DDP", "FSDP"])
@pytest.mark.parametrize("skipped", [(3,), (0, 1, 4), (1, 2, 4)])
def test_a_step_that_grad_scaler_skips_is_no_microbatch(skipped: tuple[int, ...], wrap: str) -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        net = planted.Net()
        model = DistributedDataParallel(net) if wrap == "DDP" else fully_shard(net)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for iteration in range(6):
            loss = model(planted.batch()).sum() * (math.inf if iteration in skipped else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert trace.info.whole_steps == 6 - len(skipped)
    assert "reduced_each_microbatch" not in {one.rule for one in trace.findings()}


def test_findings_speak_of_the_steps_that_the_headline_speaks_of() -> None:
    """A generation: a prefill, and tokens that are each a 16th of it."""
    tokens = 4
    with dsexplore.commtrace(world_size=4) as trace, torch.no_grad():
        model = planted.Net()
        planted.tensor_parallel(model, odd="whole outputs")
        for length in (16, *[1] * tokens):
            model(torch.randn(2, length, planted.D))
            dist.all_reduce(torch.ones(length))  # beside the model, once per token
        dist.broadcast(torch.ones(999), src=0)  # once
    headline = trace.headline()
    axes = next(str(one) for one in headline.sentences if one.about == "axes")
    assert f"{tokens} steady steps, equal" in axes
    assert "step 0 sent" in axes
    assert "between steps" in axes
    assert trace.info.whole_steps == tokens + 1
    found = {one.rule: one for one in trace.findings()}
    rows = found["all_reduce_of_shards"].rows.tolist()
    assert set(rows) <= set(headline.step_events["row"])
    assert found["all_reduce_of_shards"].wire_bytes == trace.events[rows]["wire_bytes"].sum() // tokens


def test_a_forward_that_an_exception_ends_is_no_whole_step() -> None:
    with pytest.raises(ZeroDivisionError), dsexplore.commtrace(world_size=4) as trace, torch.no_grad():
        model = planted.Net()
        planted.sharded(model, keep_last=False)
        for token in range(3):
            model(planted.batch())
            1 / (2 - token)
    assert trace.info.whole_steps == 2


def test_what_is_sent_on_another_axis_in_between_hides_nothing() -> None:
    """Under TP with FSDP, gathers on dp stand between the reductions on tp of one layer."""
    with dsexplore.commtrace(world_size=8, mesh="dp=2,tp=4") as trace:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        model = demo.Llama(demo.Shape(layers=3))
        demo.shard_tensors(model, mesh["tp"])
        demo.shard_parameters(model, mesh["dp"])
        demo.train_step(model, torch.zeros(2, 17, dtype=torch.long))
    found = {one.module: one for one in trace.findings() if one.rule == "siblings_reduce"}
    # of q, k and v two reductions too many, of w1 and w3 one, in each layer
    counts = {"Llama.layers.*.attention": 6, "Llama.layers.*.feed_forward": 3}
    assert {module: one.count for module, one in found.items()} == counts
    size = 2 * 16 * 64 * 4 * 3 // 2
    assert {module: one.spare_bytes for module, one in found.items()} == {m: n * size for m, n in counts.items()}


def test_two_equal_sums_in_a_row_may_be_of_two_tensors() -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        for tensor in (torch.ones(8), torch.ones(8)):
            dist.all_reduce(tensor)
    assert list(trace.findings()) == []
    with dsexplore.commtrace(world_size=4) as trace:
        whole = torch.empty(32)
        for _ in range(2):
            dist.all_gather_into_tensor(whole, torch.ones(8))
    assert [(one.rule, one.count) for one in trace.findings()] == [("repeated_collectives", 1)]


def test_two_equal_gathers_on_two_lines_may_be_of_two_tensors() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            whole = torch.empty(32), torch.empty(32)
            dist.all_gather_into_tensor(whole[0], x)
            dist.all_gather_into_tensor(whole[1], x + 1)
            return whole[0] + whole[1]

    with dsexplore.commtrace(world_size=4) as trace:
        Both()(torch.ones(8))
    assert list(trace.findings()) == []


def test_the_group_of_the_whole_model_is_not_left_out_because_it_is_small() -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        model = torch.nn.Sequential(planted.Net(1), torch.nn.RMSNorm(planted.D))
        fully_shard(model[0], mesh=mesh, reshard_after_forward=False)
        fully_shard(model, mesh=mesh)
        model(planted.batch()).sum().backward()
    assert list(trace.findings()) == []


@pytest.mark.parametrize(("discriminator", "generator", "rules"), [(2, 1, []), (2, 2, ["reduced_each_microbatch"] * 2)])
def test_a_model_that_reduces_more_often_than_another_has_no_microbatches(
    discriminator: int, generator: int, rules: list[str]
) -> None:
    """A GAN's discriminator reduces for real and for generated samples, which are no microbatches."""
    with dsexplore.simulate(2):
        models = [DistributedDataParallel(torch.nn.Linear(4, 4).cuda()) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        with dsexplore.commtrace() as trace:
            for _ in range(3):
                for model, optimizer, times in zip(models, optimizers, (discriminator, generator), strict=True):
                    for _ in range(times):
                        model(torch.ones(2, 4, device="cuda")).sum().backward()
                    optimizer.step()
    assert [one.rule for one in trace.findings()] == rules
    assert all(one.spare_bytes * 2 == one.wire_bytes for one in trace.findings())
