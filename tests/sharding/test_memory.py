"""The memory that training needs is counted as torch's own optimizers allocate it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.memory import OPTIMIZERS, assume

MAKERS = {
    "AdamW": torch.optim.AdamW,
    "Adam": torch.optim.Adam,
    "SGD": torch.optim.SGD,
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
}


def memory(shown, *arguments, **named):
    (row,) = dsexplore.sharding(shown).memory(*arguments, **named).rows(named=True)
    return row["parameters"], row["gradients"], row["optimizer"], row["total"]


@pytest.mark.parametrize("name", MAKERS)
def test_each_optimizers_step_allocates_the_states_that_are_counted(name):
    model = nn.Linear(8, 8)
    optimizer = MAKERS[name](model.parameters())
    model(torch.zeros(1, 8)).sum().backward()
    optimizer.step()
    held = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    states = sum(state.nbytes for state in held if state is not None)
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters())
    assert memory(model, name) == (72 * 4, gradients, states, 72 * 4 + gradients + states)


def test_every_known_optimizer_is_compared_with_torchs():
    assert OPTIMIZERS.keys() == {*MAKERS, "none"}
    assert memory(nn.Linear(8, 8), "none")[2] == 0


@pytest.mark.filterwarnings("error")
def test_parameters_that_do_not_train_have_neither_gradients_nor_states():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    assert memory(model) == ((72 + 36) * 4, 36 * 4, 2 * 36 * 4, (72 + 36 + 36 + 72) * 4)
    model.requires_grad_(False)
    assert memory(model) == ((72 + 36) * 4, 0, 0, (72 + 36) * 4)
    assert memory(model, 3, state_dtype=torch.float64, gradient_dtype=torch.float64)[1:3] == (0, 0)


def test_states_and_gradients_may_have_dtypes_of_their_own():
    model = nn.Linear(8, 8, dtype=torch.bfloat16)
    assert memory(model, "Adagrad", gradient_dtype=torch.float32) == (144, 288, 144, 576)
    assert memory(model, 2, state_dtype=torch.float32) == (144, 144, 2 * 288, 864)


def test_tensors_that_differ_in_one_thing_are_counted_each():
    plan = {"a": ((8, 2), "S(0)"), "b": ((8, 2), "S(1)"), "c": ((8, 4), "S(0)"), "d": ((8, 2), "S(0)")}
    rows = dsexplore.sharding(plan, mesh="dp=4").memory("none").rows(named=True)
    assert [(row["which"], row["parameters"]) for row in rows] == [
        ("0–1", (4 + 8 + 8 + 4) * 4),
        ("2–3", (4 + 0 + 8 + 4) * 4),
    ]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("adamw", ("AdamW", 2)), ("sgd", ("SGD", 0)), (0, ("an optimizer", 0)), (5, ("an optimizer", 5))],
)
def test_an_optimizer_is_read_from_its_name_in_any_case_or_from_a_number(optimizer, expected):
    assumed = assume(optimizer)
    assert (assumed.optimizer, assumed.states) == expected


@pytest.mark.parametrize("wrong", ["adamv", -1, True])
def test_an_unknown_optimizer_is_refused(wrong):
    with pytest.raises(UsageError, match=r"optimizer.*states"):
        assume(wrong)


def test_the_assumptions_say_what_is_counted():
    assert str(assume("RMSprop")).startswith(
        "Counted, not measured: gradients in the parameter's dtype, RMSprop with 1 state per parameter in the "
    )
    assert "with 0 states per parameter; both placed" in str(assume("SGD"))
    assert "2 states per parameter in float32;" in str(assume("Adam", state_dtype=torch.float32))
