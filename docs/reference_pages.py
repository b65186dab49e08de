"""Write a page for each public name, which autodoc fills from its docstring."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from dsexplore._internal.display import Displayable

MODULES = {
    "dsexplore": "Trace, simulate, explain",
    "dsexplore.sharding": "Which rank holds what",
    "dsexplore.cost": "Predicted seconds and bytes",
    "dsexplore.comm": "Collectives with a log",
    "dsexplore.aio": "Disks",
    "dsexplore.lessons": "Exercises that simulated ranks judge",
}
"""The modules whose names are public, and what each is for."""
RESULTS = {
    "dsexplore": (
        "dsexplore._internal.analysis.headline.Headline",
        "dsexplore._internal.analysis.findings.finding.Findings",
        "dsexplore._internal.analysis.findings.finding.Finding",
        "dsexplore._internal.analysis.step_timeline.Timeline",
        "dsexplore._internal.analysis.skew.Skew",
        "dsexplore._internal.analysis.world_map.WorldMap",
        "dsexplore._internal.analysis.parameter_history.ParameterHistory",
        "dsexplore._internal.analysis.hangs.hang_report.HangReport",
        "dsexplore._internal.trace.trace.TraceDiff",
        "dsexplore._internal.analysis.plan_difference.PlanDifference",
        "dsexplore._internal.cost.collectives.calibrate.Calibration",
    ),
    "dsexplore.sharding": ("dsexplore._internal.sharding.redistribution.Redistribution",),
    "dsexplore.cost": (
        "dsexplore._internal.cost.step.prediction.Prediction",
        "dsexplore._internal.cost.meshes.mesh_comparison.MeshComparison",
    ),
    "dsexplore.comm": (
        "dsexplore._internal.comm.logs.log_summary.CommsSummary",
        "dsexplore._internal.comm.sweeps.sweep_result.CommSweep",
    ),
}
"""Classes that functions return and nobody makes."""


def public_names(module_name: str) -> Iterator[tuple[str, object]]:
    """Yield name and value of what a module has of its own for users, in the order of `__all__`."""
    module = import_module(module_name)
    for name in module.__all__:
        value = getattr(module, name)
        home = getattr(value, "__module__", "") or ""
        if not inspect.ismodule(value) and home.partition(".")[0] == "dsexplore" and not name.startswith("_"):
            yield name, value


def write_reference(folder: Path) -> None:
    """Write the pages and an index of each module into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for module, title in MODULES.items():
        pages = [(f"{module}.{name}", value) for name, value in public_names(module)]
        pages += [(path, _value(path)) for path in RESULTS.get(module, ())]
        for path, value in pages:
            _write_page(folder / f"{path}.md", path, value)
        listed = "\n".join(path for path, _ in pages)
        (folder / f"{module}.md").write_text(
            f"# {module}: {title[0].lower()}{title[1:]}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
            encoding="utf-8",
        )


def _value(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _write_page(file: Path, path: str, value: object) -> None:
    title = path.rpartition(".")[2] if "._internal." in path else path.removeprefix("dsexplore.")
    directive = _directive(value)
    members = "   :members:\n" if directive == "autoclass" else ""
    if inspect.isclass(value) and issubclass(value, Displayable):
        members += "   :inherited-members: Displayable\n"
    page = f"# {title}\n\n```{{eval-rst}}\n.. {directive}:: {path}\n{members}```\n"
    file.write_text(page, encoding="utf-8")


def _directive(value: object) -> str:
    """Return autodoc's directive for a value."""
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) else "autodata"
