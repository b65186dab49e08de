"""No module outside of `torch_internals` names what is not public in torch; read off the sources.

Modules: ``torch_internals/``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.torch_internals.private_names import PACKAGE, ROOM, names_of_ours, names_of_torch, paths, sources

Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    return sources(PACKAGE)


@pytest.fixture(scope="module")
def ours(trees: Trees) -> set[str]:
    return names_of_ours(trees)


@pytest.mark.parametrize("path", paths(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_names_what_is_private_in_torch(trees: Trees, ours: set[str], path: Path) -> None:
    found = [f"{path.name}:{line}: {name}" for line, name in names_of_torch(trees[path], ours)]
    assert not found, f"ask dsexplore.{ROOM} for these: {found}"


def test_the_scan_finds_every_form() -> None:
    source = """
import torch._utils
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch import nn
torch._C._current_graph_task_id()
c10d._world.pg_map
tensor._local_tensor
getattr(tensor, "_spec", None)
nn.Module._apply
sys._getframe()
self._ours
nn.Linear.__init__
"""
    found = {name for _, name in names_of_torch(ast.parse(source), {"_ours"})}
    assert found == {
        "torch._utils",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._C",
        "torch._C._current_graph_task_id",
        "torch.distributed.distributed_c10d._world",
        "…._local_tensor",
        "…._spec",
        "torch.nn.Module._apply",
    }
