"""The analyses that `Trace` and `TraceDiff` offer as methods; each is imported when it is called.

Analyses are on a floor above traces, as views are. Like ``display.py`` for the views, this table is the only module of
`trace` that names them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dsexplore._internal.trace.tables import Tables

PASSES = {
    # the method of Trace: the function of Tables that it calls
    "findings": "dsexplore._internal.analysis.findings.all_rules:findings",
    "skew": "dsexplore._internal.analysis.skew:skew",
    "io_waits": "dsexplore._internal.analysis.io_waits:io_waits",
    "headline": "dsexplore._internal.analysis.headline:Headline",
    "world_map": "dsexplore._internal.analysis.make_world_map:world_map",
    "predicted_world_map": "dsexplore._internal.cost.step.predicted_map:predicted_world_map",
    "predict": "dsexplore._internal.cost.step.prediction:predict",
    "parameter_history": "dsexplore._internal.analysis.parameter_history:parameter_history",
    "timeline": "dsexplore._internal.analysis.step_timeline:timeline_of",
    "predicted_timeline": "dsexplore._internal.cost.step.predicted_timeline:predicted_timeline",
    # the methods of TraceDiff, with the other trace's Tables as ``after``
    "diff headline": "dsexplore._internal.analysis.plan_difference:plan_difference",
    "diff numerics": "dsexplore._internal.analysis.numeric_difference:numeric_difference",
    "diff timeline": "dsexplore._internal.analysis.joint_timeline:joint_timeline",
}


def run_pass(name: str, tables: Tables, **options: Any) -> Any:
    """Import and call the function of `PASSES` with that name."""
    module, _, function = PASSES[name].partition(":")
    return getattr(import_module(module), function)(tables, **options)
