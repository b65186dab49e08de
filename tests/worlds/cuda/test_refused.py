"""Features that need a GPU raise an error that names them and a remedy; ``torch.compile`` does nothing and warns."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.cuda.refused import EAGER
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in


def load_extension() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load(name="kernels", sources=["kernels.cu"])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: torch.cuda.CUDAGraph(), r"torch\.cuda\.CUDAGraph needs a GPU.*switch CUDA graphs off"),
        (lambda: torch.cuda.graph(None), r"torch\.cuda\.graph needs a GPU"),
        (lambda: torch.cuda.make_graphed_callables(nn.Linear(1, 1), ()), "make_graphed_callables needs a GPU"),
        (
            lambda: nn.DataParallel(nn.Linear(1, 1)),
            r"nn\.DataParallel.*use .*DistributedDataParallel",
        ),
        (load_extension, r"torch\.utils\.cpp_extension\.load needs a GPU.*in Python"),
    ],
)
def test_names_what_is_refused_and_what_to_do(
    call: Callable[[], Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # setuptools, which cpp_extension imports, adds to it
    with cuda_stand_in(), pytest.raises(UsageError, match=named):
        call()


def test_refused_classes_can_still_be_named() -> None:
    with cuda_stand_in():
        assert not isinstance(3, torch.cuda.CUDAGraph)
        assert not torch.cuda.is_current_stream_capturing()


def test_the_compiler_is_left_out_and_said_so_once() -> None:
    with cuda_stand_in(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = nn.Linear(2, 2).cuda()
        compiled = torch.compile(module, mode="max-autotune")
        assert compiled._orig_mod is module
        assert torch.compile()(module)._orig_mod is module
        assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
        assert torch.equal(compiled(x := torch.ones(1, 2, device="cuda")), module(x))
        assert torch.compile(module, disable=True) is module
        module.compile()

        @torch.compile(fullgraph=True)
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        assert double(module(torch.ones(1, 2, device="cuda"))).device == torch.device("cuda", 0)
    assert [(str(warning.message), warning.filename) for warning in said] == [(EAGER, __file__)]


def test_kernels_and_extensions_that_are_imported_later_are_refused_for_as_long_as_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "jit.py").write_text("class JITFunction:\n    def run(self):\n        return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    imported = [name for name in sys.modules if name.split(".")[0] == "triton"]
    for name in imported:
        monkeypatch.delitem(sys.modules, name)
    for _ in range(2):  # the second time it is imported already
        with cuda_stand_in():
            kernel = importlib.import_module("triton.runtime.jit").JITFunction()
            with pytest.raises(
                UsageError, match="Triton kernel of unknown name needs a GPU, and a CPU stands in for it"
            ):
                kernel.run()
        assert kernel.run() == 1
    for name in ("triton.runtime.jit", "triton.runtime", "triton"):
        del sys.modules[name]


def test_the_compiler_has_no_graphs_to_reset() -> None:
    with cuda_stand_in():
        torch.compiler.reset()
        torch.compiler.cudagraph_mark_step_begin()
