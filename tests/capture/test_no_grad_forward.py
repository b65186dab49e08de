"""Forwards without gradients beside a training: a phase of their own, and in no figure per step.

Modules: ``capture/stack/stack_reading.py``, ``analysis/headline.py``.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.headline_report import report
from dsexplore._internal.analysis.plan_difference import plan_difference
from dsexplore._internal.views.trace.trace_html import trace_html


def _model():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _train(model, optimizer):
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _traced(evaluations, *, costs=False):
    """Two steps; ``evaluations[i]`` forwards without gradients before the i-th."""
    with dsexplore.simulate(4), dsexplore.commtrace(costs=costs) as trace:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters())
        for count in evaluations:
            with torch.no_grad():
                for _ in range(count):
                    model(torch.randn(2, 8))
            _train(model, optimizer)
            trace.step()
    return trace


def test_an_evaluation_is_no_part_of_the_mean_of_the_steps():
    trace = _traced([3, 0])
    apart = trace.where(phase="no-grad forward").events
    assert apart["op"].to_list() == ["all_gather"] * 6
    assert set(apart["step"]) == {0}
    headline, plain = Headline(trace.tables), Headline(_traced([0, 0]).tables)
    assert headline.to_frame()["wire_bytes"].to_list() == [trace.where(step=1).events["wire_bytes"].sum()]
    assert "(the last of 2 steps)" in str(headline.sentences[0])
    assert headline.no_grad_bytes == apart["wire_bytes"].sum() > 0
    assert "forwards without gradients sent 1.3 KiB per rank besides" in str(headline.sentences[0])
    assert "forwards without gradients" not in str(plain.sentences[0])


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_what_turns_gradients_off_makes_no_difference(off):
    class Summed(nn.Linear):
        def forward(self, x):
            dist.all_reduce(x)
            return super().forward(x)

    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        model = Summed(4, 4)
        model(torch.randn(2, 4)).sum().backward()
        with off():
            model(torch.randn(2, 4))
    assert trace.events["phase"].to_list() == ["forward", "no-grad forward"]


def test_a_teacher_in_every_step_is_said_per_step():
    sentence = str(Headline(_traced([1, 1]).tables).sentences[0])
    assert "forwards without gradients sent 432 B per rank and step besides" in sentence


def test_the_report_answers_what_they_send():
    answers = dict(report(Headline(_traced([3, 0]).tables)))
    said = answers["What do forwards without gradients send?"]
    assert said.startswith("1.3 KiB per rank in 1 step, which no figure per step counts: Sequential.*")
    assert "What do forwards without gradients send?" not in dict(report(Headline(_traced([0, 0]).tables)))


def test_where_nothing_has_gradients_the_forwards_are_what_the_program_does():
    with dsexplore.simulate(4), dsexplore.commtrace() as trace, torch.no_grad():
        _model()(torch.randn(2, 8))
    assert set(trace.events["phase"]) == {"forward"}


def test_a_recording_does_not_take_another_one_s_training_for_its_own():
    with dsexplore.simulate(4), dsexplore.commtrace() as whole:
        model = _model()
        _train(model, torch.optim.SGD(model.parameters()))
        with dsexplore.commtrace() as inner, torch.no_grad():
            model(torch.randn(2, 8))
    assert set(inner.events["phase"]) == {"forward"}
    assert "no-grad forward" in set(whole.events["phase"])


def test_what_a_module_does_without_gradients_inside_a_forward_with_them_is_forward():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                dist.all_reduce(x.clone())
            return checkpoint(self.inner, x, use_reentrant=True)

    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        Outer()(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert trace.events["phase"].to_list() == ["forward"]


def test_a_prediction_is_of_a_step_without_an_evaluation():
    trace = _traced([0, 5], costs=True)
    assert set(trace.tables.kernels.filter(phase="no-grad forward")["step"]) == {1}
    assert [rank.program.step for rank in trace.predict("dgx-h100")._ranks] == [0]


def test_views_and_differences_name_them():
    trace, plain = _traced([3, 0]), _traced([0, 0])
    page = trace_html(Headline(trace.tables))
    assert "no-grad forward" in page
    assert "start-up and forwards without gradients are each in their own column only" in page
    assert "no-grad forward" not in trace_html(Headline(plain.tables))
    assert "forwards without gradients send 1.3 KiB more per rank" in str(
        plan_difference(plain.tables, trace.tables).sentences[0]
    )


def test_a_layer_in_a_reentrant_checkpoint_outside_any_module_is_trained():
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        layer = fully_shard(nn.Linear(4, 4))
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(layer, x, use_reentrant=True).sum().backward()
        with torch.no_grad():
            layer(x)
    assert trace.events["phase"].to_list() == ["forward", "backward", "no-grad forward"]


def _phases(program):
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        model = nn.Linear(4, 4)
        program(model, torch.randn(2, 4))
        model(torch.randn(2, 4)).sum().backward()
    return trace.events["phase"].to_list()


def test_metrics_of_an_evaluation_belong_to_it():
    @torch.no_grad()
    def evaluate(model, x):
        dist.barrier()  # nothing ran yet
        for _ in range(2):
            correct = (model(x) > 0).sum()
            dist.all_reduce(correct)
        dist.all_gather_object([None] * 4, correct)

    phases = _phases(evaluate)
    assert phases[0] == "other"
    assert set(phases[1:]) == {"no-grad forward"}


def test_sums_beside_a_teacher_are_the_step_s_own():
    def distil(model, x):
        student = model(x)
        with torch.no_grad():
            teacher = model(x)
        loss = nn.functional.mse_loss(student, teacher)
        with torch.no_grad():
            dist.all_reduce(loss.detach())
        loss.backward()
        with torch.no_grad():
            dist.all_reduce(model.weight.grad)

    assert _phases(distil) == ["other", "other"]


def test_metrics_summed_behind_the_block_without_gradients_belong_to_it_and_a_checkpoint_does_not():
    def evaluate(model, x):
        with torch.no_grad():
            correct = (model(x) > 0).sum()
        dist.all_reduce(correct)
        dist.all_gather_object([None] * 4, "the plan of a checkpoint")
        model(x).sum().backward()
        dist.all_reduce(correct)

    first, *plan, last = _phases(evaluate)
    assert first == "no-grad forward"
    assert {*plan, last} == {"other"}


def test_metrics_of_a_program_that_does_not_train_are_outside_of_its_forwards():
    with dsexplore.simulate(4), dsexplore.commtrace() as trace, torch.no_grad():
        dist.all_reduce(nn.Linear(4, 4)(torch.randn(2, 4)))
        _model()(torch.randn(2, 8))
    assert trace.events["phase"].to_list() == ["other", *["forward"] * 2]


def test_metrics_of_fsdp1_are_told_though_its_forward_makes_nodes():
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
        model(torch.randn(2, 4)).sum().backward()
        with torch.no_grad():
            model(torch.randn(2, 4))
        dist.all_reduce(torch.zeros(2))
    assert trace.events["phase"].to_list()[-2:] == ["no-grad forward", "no-grad forward"]
