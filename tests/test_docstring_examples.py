"""Examples in docstrings of public functions and methods run. Those of a method continue that of its class.

Modules: none of the package.
"""

from __future__ import annotations

import builtins
import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.display import Displayable

INTERFACE = (Path(__file__).parents[1] / "docs" / "public_interface.md").read_text(encoding="utf-8")
MODULES = ("dsexplore", "dsexplore.aio", "dsexplore.comm", "dsexplore.cost", "dsexplore.sharding")
CLASSES = ("Trace", "TraceDiff", "Timeline", "Sharding", "CommDebugMode")
WITHOUT_EXAMPLE = {
    # take seconds, on real ranks or on a disk: their examples are on pages of docs/howto, which run too
    "calibrate",
    "compare_meshes",
    "compare_numerics",
    "expect_same_numbers",
    "explain_hang",
    "aio.checkpoint_rates",
    "aio.feeding",
    "aio.loading",
    "aio.sustained_writes",
    "aio.sweep",
    "comm.check",
    "comm.sweep",
    "cost.beside",
    "cost.with_measured_compute",
    "Sharding.checkpoint",
    "Sharding.offload",
    "TraceDiff.numerics",
    # change this process, or need IPython's shell, MPI, a cloud or NVLink
    "load_ipython_extension",
    "unload_ipython_extension",
    "comm.destroy_process_group",
    "comm.enable_symm_mem_for_group",
    "comm.get_coalescing_manager",
    "comm.install",
    "comm.uninstall",
    "comm.mpi_discovery",
    "comm.patch_aml_env_for_torch_nccl_backend",
    "comm.patch_aws_sm_env_for_torch_nccl_backend",
}


def function_of(value: Any) -> Any:
    """Return the function that a class or static method, or a decorated function, holds."""
    return inspect.unwrap(getattr(value, "__func__", value))


def public_functions() -> dict[str, Any]:
    """Return the public functions of `MODULES`, by name: ``simulate``, ``comm.all_reduce``."""
    named = {
        f"{module}.{name}".removeprefix("dsexplore."): function_of(getattr(import_module(module), name))
        for module in MODULES
        for name in import_module(module).__all__
    }
    named["sharding"] = inspect.unwrap(dsexplore.sharding)
    return {name: value for name, value in named.items() if inspect.isroutine(value)}


def public_methods(name: str) -> dict[str, Any]:
    """Return the methods of a class that `docs/public_interface.md` lists, but for torch's, and those of all views."""
    names = re.search(rf"^\| `{name}` \| [^|]+ \| (.*) \|$", INTERFACE, re.MULTILINE)
    assert names is not None
    methods = {"to_frame", *re.findall(r"`(\w+)`", names[1])} - vars(Displayable).keys()
    values = {method: function_of(inspect.getattr_static(class_of(name), method, None)) for method in sorted(methods)}
    return {
        method: value
        for method, value in values.items()
        if inspect.isroutine(value) and value.__module__.startswith("dsexplore.")
    }


def class_of(name: str) -> type:
    """Return a public class."""
    homes = {"TraceDiff": "dsexplore._internal.trace.trace", "Timeline": "dsexplore._internal.analysis.step_timeline"}
    homes["Sharding"] = "dsexplore._internal.sharding.layout"
    found: type = getattr(import_module(homes.get(name, "dsexplore")), name)
    return found


def run_examples(documented: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Run the examples of a docstring, and return the names that are defined afterwards."""
    text = inspect.getdoc(documented) or ""
    home = vars(import_module(documented.__module__))
    layer = dsexplore.comm if home["__name__"].startswith("dsexplore._internal.comm.") else dist
    names = {**home, "dsexplore": dsexplore, "torch": torch, "dist": layer, "Path": Path, **names}
    test = doctest.DocTestParser().get_doctest(text, names, documented.__qualname__, None, None)
    assert test.examples, f"{documented.__qualname__} has no example"
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append, clear_globs=False)
    vars(builtins).pop("_", None)  # the last value shown, with which IPython would keep no value of its own
    assert not failures, "".join(failures)
    return {name: value for name, value in test.globs.items() if name not in home}


FUNCTIONS = sorted(public_functions().keys() - WITHOUT_EXAMPLE)


def test_every_other_public_function_has_an_example() -> None:
    named = public_functions().keys() | {f"{name}.{method}" for name in CLASSES for method in public_methods(name)}
    assert named > WITHOUT_EXAMPLE
    assert not [name for name in FUNCTIONS if ">>>" not in (inspect.getdoc(public_functions()[name]) or "")]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server", "registered")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_of_functions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(public_functions()[name], {})


@pytest.mark.parametrize("name", CLASSES)
def test_examples_of_methods(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_examples(class_of(name), {})
    for method, function in public_methods(name).items():
        if f"{name}.{method}" not in WITHOUT_EXAMPLE:
            run_examples(function, names)
