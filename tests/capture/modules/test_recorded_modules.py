"""One tree per model, whatever ran first; backward nodes belong to the module whose forward made them."""

import copy
import gc
import pickle
import threading
import weakref
from array import array
from collections.abc import Iterator

import pytest
import torch
from small_models import D, FeedForward
from torch import nn
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.capture.modules.module_calls import ModuleCalls
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack.source_lines import file_name, source_text

PARTS = ("", ".w1", ".w3", ".w2")


def stacked(depth: int = 2) -> nn.Sequential:
    """Return that many feed-forward layers."""
    return nn.Sequential(*(FeedForward() for _ in range(depth)))


@pytest.fixture
def modules() -> Iterator[Modules]:
    observer = ModuleCalls(Modules(lambda _about, message: pytest.fail(message)))
    observer.install()
    yield observer.modules
    observer.uninstall()


def calls(modules: Modules) -> dict[str, int]:
    return {module.name: module.calls for module in modules.in_order()}


def test_names_begin_with_the_models_class(modules: Modules) -> None:
    stacked()(torch.ones(1, D))
    assert calls(modules) == {
        "Sequential": 1,
        **{f"Sequential.{i}{part}": 1 for i in range(2) for part in PARTS},
    }


def test_a_parameter_that_cannot_be_read_leaves_the_modules_their_names() -> None:
    class Unreadable(nn.Parameter):
        @property
        def shape(self) -> torch.Size:
            raise RuntimeError("no shape")

    model, warned = stacked(), []
    model[0].w3.weight = Unreadable(model[0].w3.weight.data)
    observer = ModuleCalls(Modules(lambda about, message: warned.append((about, message))))
    observer.install()
    try:
        model(torch.ones(1, D))
    finally:
        observer.uninstall()
    assert calls(observer.modules) == {
        "Sequential": 1,
        **{f"Sequential.{i}{part}": 1 for i in range(2) for part in PARTS},
    }
    ((about, message),) = warned
    assert about == "Sequential"
    assert message.startswith("dsexplore could not read all of the model around Sequential, whose call goes on: ")
    assert "no shape" in message


def test_a_part_that_ran_first_joins_its_model(modules: Modules) -> None:
    model = stacked()
    model[1](torch.ones(1, D))
    assert list(calls(modules)) == ["FeedForward", "FeedForward.w1", "FeedForward.w3", "FeedForward.w2"]
    model(torch.ones(1, D))
    assert list(calls(modules)) == [
        "Sequential",
        *(f"Sequential.{i}{part}" for i in range(2) for part in PARTS),
    ]
    assert calls(modules)["Sequential.1.w1"] == 2
    holders = [parameter.module.name for parameter in modules.parameters() if parameter.name == "weight"]
    assert holders == [f"Sequential.{i}{part}" for i in range(2) for part in PARTS[1:]]


def test_two_models_of_one_class_are_told_apart(modules: Modules) -> None:
    stacked(1)(torch.ones(1, D))
    stacked(1)(torch.ones(1, D))
    nn.Linear(D, D)(torch.ones(1, D))
    assert [name for name in calls(modules) if "." not in name] == ["Sequential", "Sequential#2", "Linear"]


def test_a_shared_module_has_one_name_and_all_its_calls(modules: Modules) -> None:
    model = stacked()
    model[1] = model[0]
    model(torch.ones(1, D))
    assert calls(modules)["Sequential.0"] == 2
    assert "Sequential.1" not in calls(modules)


def test_tied_parameters_say_whose_they_are(modules: Modules) -> None:
    model = stacked(1)
    model[0].w2.weight = nn.Parameter(model[0].w1.weight.t().contiguous())
    other = nn.Linear(D, D)
    tied = nn.Sequential(other, nn.Linear(D, D))
    tied[1].weight = other.weight
    tied(torch.ones(1, D))
    shared = {f"{p.module.name}.{p.name}": p.shared_with for p in modules.parameters()}
    assert shared["Sequential.0.weight"] is None
    assert shared["Sequential.1.weight"] is not None
    assert shared["Sequential.1.weight"].module.name == "Sequential.0"


def test_wrappers_are_no_part_of_a_name(modules: Modules) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = stacked()
    model[0] = checkpoint_wrapper(model[0])
    model(torch.ones(1, D))
    assert list(calls(modules)).count("Sequential.0") == 1
    assert calls(modules)["Sequential.0"] == 1
    assert not any("_checkpoint" in name for name in calls(modules))


def test_a_module_added_after_the_first_call_is_found(modules: Modules) -> None:
    model = stacked(1)
    model(torch.ones(1, D))
    model.append(FeedForward())
    model(torch.ones(1, D))
    assert calls(modules)["Sequential.1.w1"] == 1


def node_names(modules: Modules, output: torch.Tensor) -> list[str]:
    """Return the module of every autograd node behind a tensor, outermost first."""
    names, nodes = [], [output.grad_fn]
    while nodes:
        node = nodes.pop(0)
        if node is None or type(node).__name__ == "AccumulateGrad":
            continue
        module = modules.call_of_node(node, called_here=False).module
        names.append(f"{node.name().removesuffix('Backward0')} {module.name if module else '-'}")
        nodes.extend(parent for parent, _ in node.next_functions)
    return names


def test_autograd_nodes_belong_to_the_module_that_made_them(modules: Modules) -> None:
    out = stacked(1)(torch.ones(1, D)) * 2
    names = node_names(modules, out)
    assert names[:2] == ["Mul -", "Mm Sequential.0.w2"]
    assert "Silu Sequential.0" in names
    assert "Mm Sequential.0.w1" in names


def test_a_gradient_accumulator_belongs_to_the_holder_of_its_parameter(modules: Modules) -> None:
    model = stacked(1)
    transposed = model(torch.ones(1, D)).grad_fn.next_functions[1][0]  # type: ignore[union-attr]
    accumulator = transposed.next_functions[0][0]
    found = modules.call_of_node(accumulator, called_here=True).module
    assert found is not None
    assert found.name == "Sequential.0.w2"


def test_an_exception_inside_a_module_leaves_no_open_call(modules: Modules) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        nn.Sequential(nn.Identity(), Failing())(torch.ones(1))
    assert modules.own.calls.open == []


def test_an_interrupt_inside_a_module_does_not_confuse_the_next_call(modules: Modules) -> None:
    class Interrupted(nn.Module):
        stop = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.stop:
                raise KeyboardInterrupt
            return x * 2

    model = nn.Sequential(nn.Linear(1, 1), Interrupted())
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 1))
    model[1].stop = False
    out = model(torch.ones(1, 1)).sum()
    assert node_names(modules, out)[0] == "Sum -"
    assert modules.own.calls.open == []


def test_an_interrupt_as_a_call_begins_leaves_no_open_call(modules: Modules) -> None:
    class Interrupted(array):
        def append(self, number: int) -> None:
            raise KeyboardInterrupt

    own, model = modules.own.calls, nn.Linear(1, 1)
    own.boundaries = Interrupted("q")
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 1))
    assert (own.open, own.modules, own.lines, own.boundaries.tolist()) == ([], [], [], [])
    own.boundaries = array("q")
    assert node_names(modules, model(torch.ones(1, 1)))[0] == "Addmm Linear"


def test_recomputed_forwards_count_as_calls(modules: Modules) -> None:
    block = FeedForward()
    checkpoint(block, torch.ones(1, D, requires_grad=True), use_reentrant=False).sum().backward()
    assert calls(modules)["FeedForward.w1"] == 2


def test_threads_do_not_share_a_stack(modules: Modules) -> None:
    names: list[str] = []

    class Spawning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            other = nn.Linear(1, 1)
            thread = threading.Thread(target=lambda: names.append(node_names(modules, other(x))[0]))
            thread.start()
            thread.join()
            return self.inner(x)

    out = Spawning()(torch.ones(1, 1))
    assert names == ["Addmm Linear"]
    assert node_names(modules, out)[0] == "Addmm Spawning.inner"


def test_models_are_not_kept_alive_and_calls_are_torchs_own_again() -> None:
    call_module = nn.Module.__call__
    observer = ModuleCalls(Modules(lambda _about, message: pytest.fail(message)))
    observer.install()
    assert nn.Module.__call__ is not call_module
    model = stacked()
    model(torch.ones(1, D))
    observer.uninstall()
    assert nn.Module.__call__ is call_module
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert calls(observer.modules)["Sequential.0"] == 1


def test_modules_are_left_as_they_are_meanwhile(modules: Modules) -> None:
    model = nn.Sequential(nn.Linear(D, D))
    before = [dict(part.__dict__) for part in model.modules()]
    model(torch.ones(1, D))
    assert [dict(part.__dict__) for part in model.modules()] == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    copied, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    copied(torch.ones(1, D))
    again(torch.ones(1, D))
    assert [name for name in calls(modules) if "." not in name] == ["Sequential", "Sequential#2", "Sequential#3"]


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "meanwhile"])
def test_a_replacement_of_the_programs_own_is_called_and_left(is_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torchs, called = nn.Module.__call__, []
    monkeypatch.setattr(nn.Module, "__call__", torchs)  # put back in the end
    observers = [ModuleCalls(Modules(lambda _about, message: pytest.fail(message))) for _ in range(3)]

    def replace() -> None:
        beneath = nn.Module.__call__

        def own(self: nn.Module, *args: object) -> object:
            called.append(type(self).__name__)
            return beneath(self, *args)

        monkeypatch.setattr(nn.Module, "__call__", own)

    if is_first:
        replace()
    observers[0].install()
    if not is_first:
        replace()
    theirs = nn.Module.__call__
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2))
    observers[0].uninstall()
    model(torch.ones(1, 2))
    observers[1].install()
    model(torch.ones(1, 2))
    observers[1].uninstall()
    assert called == ["Linear"] * 3
    assert [calls(observer.modules) for observer in observers[:2]] == [{"Linear": 1}] * 2
    if not is_first:
        assert nn.Module.__call__ is theirs
    monkeypatch.setattr(nn.Module, "__call__", torchs)  # the program takes its own away
    observers[2].install()
    model(torch.ones(1, 2))
    observers[2].uninstall()
    assert calls(observers[2].modules) == {"Linear": 1}
    assert nn.Module.__call__ is torchs


def test_outputs_are_not_replaced(modules: Modules) -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return x, None

    tensor = torch.ones(1)
    assert Several()(tensor)[0] is tensor


def test_a_node_knows_the_line_that_called_its_module(modules: Modules) -> None:
    block = FeedForward()
    lines = []
    for out in (block(torch.ones(1, D)), block(torch.ones(1, D))):
        ((code, offset),) = modules.call_of_node(out.grad_fn, called_here=False).sources
        file, _, line = source_text(code, offset).rpartition(":")
        assert file == file_name(FeedForward.forward.__code__.co_filename)
        lines.append(int(line))
    assert lines[0] == FeedForward.forward.__code__.co_firstlineno + 1


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_script_modules_are_followed(modules: Modules) -> None:
    """Their ``_modules`` is not a dict."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    nn.Sequential(scripted)(torch.ones(1, 2))
    assert calls(modules) == {"Sequential": 1, "Sequential.0": 1, "Sequential.0.0": 0}


def test_a_module_is_still_told_of_once_another_lies_where_it_lay(modules: Modules) -> None:
    """Some of ten blocks made one after the other, each gone by then, have the same address."""
    for _ in range(10):
        FeedForward()(torch.ones(1, D))
    labels = ["FeedForward", *(f"FeedForward#{number}" for number in range(2, 11))]
    assert calls(modules) == {name: 1 for label in labels for name in (f"{label}{part}" for part in PARTS)}


def test_a_model_that_cannot_be_read_runs_and_is_warned_of_once() -> None:
    class Unreadable(nn.Module):
        def named_modules(self, *_args: object, **_kwargs: object) -> Iterator[tuple[str, nn.Module]]:
            raise LookupError("no list of my parts")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    warned: list[str] = []
    observer = ModuleCalls(Modules(lambda _about, message: warned.append(message)))
    observer.install()
    try:
        model = Unreadable()
        for _ in range(2):
            assert model(torch.ones(1)).item() == 2
    finally:
        observer.uninstall()
    (message,) = warned
    assert "around Unreadable" in message
    assert "no list of my parts" in message
    assert calls(observer.modules) == {"Unreadable": 2}
