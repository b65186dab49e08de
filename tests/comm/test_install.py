"""`install` puts this package in the place of ``deepspeed.comm``, here of a small package of that name.

DeepSpeed itself is installed in the frameworks' environment alone: ``tests/frameworks/test_deepspeed_log.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore._internal.capture.record import record

_FILES = {
    "__init__.py": "",
    "comm/__init__.py": "from .comm import *",
    "comm/comm.py": """
        import functools
        import torch.distributed as td
        from .torch import TorchBackend
        from .utils import *

        cdb = None
        comms_logger = "DeepSpeed's"

        def timed_op(func):
            @functools.wraps(func)
            def log_wrapper(*args, **kwargs):
                return func(*args, **kwargs)
            return log_wrapper

        def init_distributed(dist_backend=None, verbose=True):
            global cdb
            cdb = TorchBackend()
            if verbose:
                print("Initializing TorchBackend")

        @timed_op
        def all_reduce(tensor, op=td.ReduceOp.SUM, group=None, async_op=False, prof=False, log_name="all_reduce"):
            return TorchBackend().all_reduce(tensor, op, group, async_op)

        @timed_op
        def isend(tensor, dst):
            return td.isend(tensor, dst)

        def all_gather_coalesced(outputs, inputs):
            TorchBackend().all_reduce(inputs[0], td.ReduceOp.MAX, None, False)

        class P2POp:
            pass

        def has_coalescing_manager():
            return cdb.has_coalescing_manager

        def only_theirs():
            return "DeepSpeed's"
    """,
    "comm/torch.py": """
        import torch.distributed as td

        class Noop:
            pass

        class TorchBackend:
            def all_reduce(self, tensor, op, group, async_op):
                return td.all_reduce(tensor, op, group, async_op)

        def all_reduce_comm_off(flag=False):
            pass
    """,
    "comm/utils.py": """
        def get_local_rank_from_launcher():
            return -7
    """,
    "engine.py": """
        from deepspeed import comm as dist
        from deepspeed.comm import all_reduce

        def step(tensor, bucket=None):
            dist.all_reduce(tensor, log_name="gradients")
            all_reduce(tensor)
            dist.all_gather_coalesced([tensor], [tensor])
    """,
}


@pytest.fixture
def deepspeed(gloo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a package that can be imported as ``deepspeed``, and a world of one rank."""
    for name, text in _FILES.items():
        file = tmp_path / "deepspeed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    dist.uninstall()
    dist.configure(enabled=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        del sys.modules[name]


def logged() -> list[tuple[str, str, str]]:
    """Name, layer and reduction of each line of the log."""
    return [(line.name, line.layer, line.reduction) for line in dist.comms_logger.records]


def everything(package: str) -> dict[str, Any]:
    """Return every name of a package's modules, and what it stands for."""
    return {
        f"{module}.{name}": value
        for module in [name for name in sys.modules if name.split(".")[0] == package]
        for name, value in vars(sys.modules[module]).items()
        if not name.startswith("__")
    }


@pytest.mark.usefixtures("deepspeed")
def test_without_it_deepspeeds_calls_have_their_layer_their_name_and_the_users_line() -> None:
    engine = import_module("deepspeed.engine")
    dist.configure(enabled=True)
    engine.step(torch.ones(2))
    assert logged() == [
        ("gradients", "deepspeed.comm", "SUM"),
        ("all_reduce", "deepspeed.comm", "SUM"),
        ("all_gather_coalesced", "deepspeed.comm", "MAX"),
    ]
    lines = {record.source for record in dist.comms_logger.records}
    assert [line.rpartition(":")[0] for line in lines] == ["tests/comm/test_install.py"]


@pytest.mark.usefixtures("deepspeed")
def test_a_backward_hook_of_an_engine_is_not_taken_for_ddps() -> None:
    engine = import_module("deepspeed.engine")
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(lambda one: engine.step(one.grad))
    with record() as trace:
        weight.sum().backward()
    assert trace.events.select("phase", "cause").unique().rows() == [("backward", "")]


@pytest.mark.parametrize("imported_first", [True, False])
@pytest.mark.usefixtures("deepspeed")
def test_every_reference_is_replaced_and_put_back(imported_first: bool, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"deepspeed.{name}" for name in ("comm", "comm.comm", "comm.torch", "comm.utils", "engine")]
    if imported_first:
        modules = [import_module(name) for name in names]
        before = everything("deepspeed")
        installed = dist.install()
    else:
        installed = dist.install()
        modules = [import_module(name) for name in names]
    comm, engine = modules[0], modules[-1]
    dist.configure(enabled=True)
    with installed:
        assert dist.install() is installed
        engine.step(torch.ones(2))
        assert logged()[:2] == [("gradients", "dsexplore.comm", "SUM"), ("all_reduce", "dsexplore.comm", "SUM")]
        assert comm.comms_logger is modules[1].comms_logger is dist.comms_logger
        assert comm.get_local_rank_from_launcher() == 0
        assert comm.only_theirs() == "DeepSpeed's"
        assert comm.has_coalescing_manager() is True
        assert issubclass(comm.P2POp, dist.P2POp)
        with dist.comm_off("all_reduce"), pytest.warns(UserWarning, match="all_reduce is off"):
            assert isinstance(comm.all_reduce(torch.ones(1)), dist.Noop)
    assert comm.comms_logger == "DeepSpeed's"
    assert comm.get_local_rank_from_launcher() == -7
    assert comm.all_reduce is engine.all_reduce is modules[1].all_reduce
    assert modules[1].cdb is not None  # it has adopted the world
    assert capsys.readouterr().out == ""
    if imported_first:
        assert {**everything("deepspeed"), "deepspeed.comm.comm.cdb": None} == before
    assert dist.all_reduce.__module__ == "dsexplore._internal.comm.calls"


@pytest.mark.usefixtures("deepspeed")
def test_deepspeeds_reductions_are_taken() -> None:
    from enum import Enum

    class ReduceOp(Enum):
        SUM = 0
        MAX = 3

    tensor = torch.ones(2)
    dist.configure(enabled=True)
    dist.all_reduce(tensor, op=ReduceOp.MAX)
    assert logged() == [("all_reduce", "dsexplore.comm", "MAX")]


def test_what_is_never_imported_is_waited_for_until_it_is_taken_back() -> None:
    with dist.install():
        assert any(type(one).__module__ == "dsexplore._internal.comm.install" for one in sys.meta_path)
    assert not any(type(one).__module__ == "dsexplore._internal.comm.install" for one in sys.meta_path)
