"""Trace and headline number the steps of a script that has several optimizers in the same way.

Modules: ``capture/optimizer_steps.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore

ALTERNATING = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
judge, maker = (DistributedDataParallel(torch.nn.Linear(4, 4)) for _ in range(2))
optimizers = [torch.optim.SGD(model.parameters()) for model in (judge, maker)]
for _ in range(3):
    for model, optimizer in zip((judge, maker), optimizers):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
"""
WRAPPED = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
inner = torch.optim.SGD(model.parameters())
class Wrapper(torch.optim.Optimizer):
    def step(self):
        inner.step()
        dist.broadcast(model.weight.data, 0)
optimizer = Wrapper(model.parameters(), {})
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def traced(folder: Path, script: str, *, steps: int | None = None, costs: bool = False) -> dsexplore.Trace:
    (folder / "train.py").write_text(script)
    return dsexplore.run(folder / "train.py", world_size=4, hardware="cpu", steps=steps, fake=costs, costs=costs)


OUTER = """\
import copy, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
outer_model = copy.deepcopy(model)
inner = torch.optim.SGD(model.parameters())
outer = torch.optim.SGD(outer_model.parameters())
for step in range(1, 7):
    loss = model(torch.ones(1, 4)).sum()
    dist.all_reduce(loss.detach().clone())
    loss.backward()
    inner.step()
    if step % 3 == 0:
        for old, new in zip(outer_model.parameters(), model.parameters()):
            old.grad = old.data - new.data
            dist.all_reduce(old.grad)
        outer.step()
"""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(None, [0, 1, 2, 2, 2, 3, 4, 5, 5, 5]), (1, [0]), (3, [0, 1, 2, 2, 2]), (4, [0, 1, 2, 2, 2, 3])],
)
def test_a_step_has_what_an_outer_optimizer_sends_after_it(
    tmp_path: Path, steps: int | None, expected: list[int]
) -> None:
    trace = traced(tmp_path, OUTER, steps=steps)
    assert trace.events["step"].to_list() == expected
    assert not any("after the last optimizer step" in note for note in trace.info.notes)


@pytest.mark.parametrize("steps", [None, 1, 2])
def test_a_step_has_what_all_optimizers_of_it_send(tmp_path: Path, steps: int | None) -> None:
    trace = traced(tmp_path, ALTERNATING, steps=steps)
    sent = trace.where(phase="backward").events
    assert sent["step"].to_list() == [step for step in range(steps or 3) for _ in range(2)]
    assert not any("after the last optimizer step" in note for note in trace.info.notes)


def test_a_step_has_what_an_optimizer_sends_after_the_one_within_it(tmp_path: Path) -> None:
    trace = traced(tmp_path, WRAPPED)
    assert trace.events["step"].to_list() == [0, 1, 2]


def test_the_work_of_all_optimizers_of_a_step_counts_to_it(tmp_path: Path) -> None:
    kernels = traced(tmp_path, ALTERNATING, costs=True).tables.kernels
    assert kernels.filter(phase="backward")["step"].unique().sort().to_list() == [0, 1, 2]
