"""``compare_numerics`` on whole plans: no alarm where a plan is right, and the place where it is not."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import dsexplore
from dsexplore import ExpectationError, NumericsReport, RanksFailedError, UsageError, compare_numerics
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.torch_internals.names import torch_at_least
from tests.numerics.further_right_plans import FURTHER_RIGHT_PLANS
from tests.numerics.further_wrong_plans import FURTHER_WRONG_PLANS
from tests.numerics.later_right_plans import LATER_RIGHT_PLANS
from tests.numerics.later_wrong_plans import LATER_WRONG_PLANS
from tests.numerics.outsider_right_plans import OUTSIDER_RIGHT_PLANS
from tests.numerics.outsider_wrong_plans import OUTSIDER_WRONG_PLANS
from tests.numerics.right_plans import RIGHT_PLANS, RightPlan, ddp, megatron, plain
from tests.numerics.trained_model import Trained, seeded, tensor_parallel, tokens_and_targets, trained
from tests.numerics.wrong_plan import WrongPlan
from tests.numerics.wrong_plans import WRONG_PLANS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]
ALL_RIGHT_PLANS = (*RIGHT_PLANS, *FURTHER_RIGHT_PLANS, *OUTSIDER_RIGHT_PLANS, *LATER_RIGHT_PLANS)
ALL_WRONG_PLANS = (*WRONG_PLANS, *FURTHER_WRONG_PLANS, *OUTSIDER_WRONG_PLANS, *LATER_WRONG_PLANS)
FAST = {"TP", "DDP with accumulation", "PP", "EP", "dropout", "bf16", "experts of tokens"} | {
    "CP in zigzag",
    "top two experts by all_to_all",
    "recomputed in part, with dropout",
    "own draws of own features",
    "optimizer in backward",
}
FAST_FAULTS = {"joined in turn", "rotary", "head made later", "three and five", "shards clipped"} | {
    "vocabulary in parts",
    "clipped before",
    "own half updated",
    "padding attended",
    "tokens alone in zigzag",
    "rows of experts not sorted back",
    "heads come back backwards",
    "drawn again in backward",
    "left in evaluation",
    "same draws of own features",
    "own generator drawn again",
    "drawn again by hand",
    "gate and up cut as one",
    "largest over padding",
}


@pytest.mark.parametrize(
    "plan",
    [
        plan
        for plan in (*RIGHT_PLANS, *FURTHER_RIGHT_PLANS, *OUTSIDER_RIGHT_PLANS, *LATER_RIGHT_PLANS)
        if plan.name in FAST
    ],
    ids=lambda plan: plan.name,
)
def test_a_right_plan_raises_no_alarm(plan: RightPlan) -> None:
    report = compared(plan.reference, plan.parallel, plan.mesh)
    assert report.same, report.verdict()
    assert report.verdict().startswith("The same numbers")
    assert (report.module, report.phase, report.ranks, report.reason) == (None, None, (), None)
    parameters = report.to_frame().filter(pl.col("compared") & pl.col("phase").is_in(["gradient", "optimizer"]))
    assert parameters["same"].all()
    assert parameters.height


@pytest.mark.parametrize(
    "plan",
    [
        plan
        for plan in (*WRONG_PLANS, *FURTHER_WRONG_PLANS, *OUTSIDER_WRONG_PLANS, *LATER_WRONG_PLANS)
        if plan.name in FAST_FAULTS
    ],
    ids=lambda plan: plan.name,
)
def test_the_place_and_the_reason_of_a_fault_are_named(plan: WrongPlan) -> None:
    report = compared(plan.reference, plan.parallel, plan.mesh, steps=1)
    assert report.module in plan.places
    assert (report.phase, report.reason, report.step) == (plan.phase, plan.reason, 0)
    assert report.change in report.verdict()


def test_draws_of_later_steps_are_compared() -> None:
    plan = next(plan for plan in LATER_WRONG_PLANS if plan.name == "sampled by the first rank")
    report = compared(plan.reference, plan.parallel, plan.mesh)
    assert (report.module, report.phase, report.reason, report.step) == ("layers.0.drop", "forward", "dropout", 1)


def compared(reference: Any, parallel: Any, mesh: str, **options: Any) -> NumericsReport:
    return compare_numerics(reference, parallel, mesh=mesh, world_size=parse_mesh(mesh).size, **options)


def without_a_reduction(mesh: DeviceMesh) -> Trained:
    model = tensor_parallel(seeded(), mesh["tp"])
    model.layers[1].feed_forward.down.times = 0  # type: ignore[union-attr]
    return trained(model, *tokens_and_targets())


def test_a_wrong_plan_names_place_ranks_reason_and_change() -> None:
    report = compared(plain, without_a_reduction, "tp=2", steps=1)
    assert not report.same
    assert (report.module, report.phase, report.step) == ("layers.1.feed_forward.down", "forward", 0)
    assert report.ranks == (0, 1)
    wrong = report.to_frame().filter(~pl.col("same"))
    assert wrong["module"][0] == "layers.1.feed_forward.down"


def test_the_assertion_says_where_numbers_part() -> None:
    with pytest.raises(ExpectationError, match=r"layers\.1\.feed_forward\.down"):
        dsexplore.expect_same_numbers(plain, without_a_reduction, mesh="tp=2", world_size=2, steps=1)


def test_a_tolerance_can_be_given() -> None:
    assert compared(plain, without_a_reduction, "tp=2", steps=1, tolerance=1e6).same
    assert not compared(plain, ddp, "dp=2", steps=1, tolerance=0.0).same


def of_fresh_data() -> Trained:
    model = seeded()
    tokens, targets = tokens_and_targets()
    torch.seed()
    return trained(model, torch.randint_like(tokens, int(tokens.max())), targets)


def test_a_reference_that_draws_anew_in_each_run_is_said_to_and_no_plan_is_blamed() -> None:
    report = compared(of_fresh_data, megatron, "tp=2", steps=1)
    assert (report.same, report.phase, report.ranks, report.reason) == (False, "forward", (), None)
    assert report.verdict().startswith("The reference itself differs between two runs: in forward of step 0")


class FreshDropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.seed()
        return torch.nn.functional.dropout(x, 0.5)


def dropped_anew(mesh: DeviceMesh | None = None) -> Trained:
    model = seeded()
    model.norm = torch.nn.Sequential(model.norm, FreshDropout())
    return trained(model, *tokens_and_targets())


def test_a_reference_whose_dropout_draws_anew_is_said_to() -> None:
    report = compared(dropped_anew, dropped_anew, "tp=2", steps=1)
    assert report.verdict().startswith(
        "The reference itself differs between two runs: in forward of step 0 dropout in Transformer.norm.1 draws other"
    )
    assert (report.module, report.ranks, report.reason) == ("norm.1", (), None)


def no_model(mesh: DeviceMesh | None = None) -> Any:
    return torch.zeros(2), print


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "dp=2", "world_size": 4}, "world_size is 4"),
        ({"mesh": ""}, "mesh is empty"),
        ({"steps": 0}, "steps 0"),
        ({"tolerance": -1.0}, "tolerance -1.0"),
    ],
)
def test_refuses_what_is_no_comparison(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_numerics(plain, megatron, **options)


def test_says_what_a_program_must_return() -> None:
    with pytest.raises(RanksFailedError, match=r"return a torch\.nn\.Module"):
        compare_numerics(no_model, no_model)


@pytest.mark.skipif(
    not torch_at_least("2.10"), reason="stages of torch 2.9 send 8 bytes where they receive 4, and gloo ends the ranks"
)
def test_a_stage_that_finds_out_its_shapes_is_compared_by_the_calls_of_the_schedule() -> None:
    plan = next(plan for plan in FURTHER_RIGHT_PLANS if plan.name == "tied embeddings in a pipeline")
    report = compared(plan.reference, plan.parallel, plan.mesh, steps=1)
    layers = report.to_frame().filter(pl.col("module").str.starts_with("layers."))
    assert set(layers["phase"]) == {"forward", "backward", "gradient", "optimizer"}
    assert layers["compared"].all()
