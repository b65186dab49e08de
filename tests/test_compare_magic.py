"""``%%compare_numerics`` compares a cell with a model, and leaves only a report."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError as ShellUsageError

import dsexplore
from tests.notebook_cells import Notebook

REFERENCE = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def training(model, scale=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        (scale * model(torch.ones(4, 8)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, step

def reference():
    return training(build())
"""
CELL = """
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
model = parallelize_module(build(), mesh["tp"], plan)
training(model, SCALE)
"""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_compares_the_cell_on_the_mesh_that_is_given_or_open(notebook: Notebook) -> None:
    notebook.ok(REFERENCE)
    ran = notebook.ok(f"%%compare_numerics reference --mesh tp=2 --steps 1 -o report\n{CELL.replace('SCALE', '1.0')}")
    report = notebook.names["report"]
    assert isinstance(report, dsexplore.NumericsReport)
    assert (report.same, report.mesh) == (True, "tp=2")
    assert [shown.data["text/plain"] for shown in ran.shown] == [report._repr_mimebundle_()["text/plain"]]
    assert "plan" not in notebook.names
    assert "mesh" not in notebook.names
    notebook.ok("%commtrace --mesh tp=2")
    ran = notebook.ok(f"%%compare_numerics reference --steps 1 -q\n{CELL.replace('SCALE', '2.0')}")
    notebook.ok("%commtrace --close")
    wrong = notebook.names["_report"]
    assert (wrong.same, wrong.mesh, wrong.reason, ran.shown) == (False, "tp=2", "factor", [])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%compare_numerics program\n1", "no mesh is given"),
        ("%%compare_numerics --mesh tp=2\n1", "the reference is missing"),
        ("%%compare_numerics nothing --mesh tp=2\n1", "nothing is not a function"),
        ("%%compare_numerics program --mesh tp=2\nx = 1", "ends with a statement"),
        ("%%compare_numerics dict --meh tp=2\n1", "--mesh"),
        ("%compare_numerics dict --mesh tp=2", "write %%compare_numerics on top"),
    ],
)
def test_refuses_what_is_no_comparison(notebook: Notebook, cell: str, message: str) -> None:
    notebook.names["program"] = dict
    ran = notebook.run(cell)
    assert isinstance(ran.error, ShellUsageError)
    assert message in str(ran.error)


def test_help_is_its_docstring(notebook: Notebook) -> None:
    assert "say where a parallel program" in notebook.ok("%compare_numerics -h").out.lower()


def test_before_the_extension_is_loaded_says_to_load_it(notebook: Notebook) -> None:
    notebook.ok("%unload_ext dsexplore")
    ran = notebook.run("%%compare_numerics dict\n1")
    notebook.ok("%load_ext dsexplore")
    assert "%%compare_numerics is not loaded yet" in str(ran.error)
