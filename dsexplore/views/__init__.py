"""Views: how each kind of object is rendered, one folder per subject. A view is imported on first use.

To add a view, write a subclass of `dsexplore.views.view.View` that takes the object, and add its line to `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dsexplore.views.view import View

VIEWS = {
    # the class that is shown: the view that shows it
    "dsexplore.trace.trace:Trace": "dsexplore.views.trace.trace_view:TraceView",
    "dsexplore.trace.trace:TraceDiff": "dsexplore.views.trace.diff_view:TraceDiffView",
    "dsexplore.analysis.findings.finding:Findings": "dsexplore.views.trace.headline_view:FindingsView",
    "dsexplore.analysis.world_map:WorldMap": "dsexplore.views.world_map.world_map_view:WorldMapView",
    "dsexplore.analysis.parameter_history:ParameterHistory": (
        "dsexplore.views.parameter_history.parameter_history_view:ParameterHistoryView"
    ),
    "dsexplore.analysis.step_timeline:Timeline": "dsexplore.views.timeline.timeline_view:TimelineView",
    "dsexplore.analysis.headline:Headline": "dsexplore.views.trace.headline_view:HeadlineView",
    "dsexplore.analysis.skew:Skew": "dsexplore.views.skew.skew_view:SkewView",
    "dsexplore.sharding.layout:Sharding": "dsexplore.views.sharding.sharding_view:ShardingView",
    "dsexplore.sharding.redistribution:Redistribution": (
        "dsexplore.views.sharding.redistribution_view:RedistributionView"
    ),
    "dsexplore.aio.sustained_result:SustainedWrites": "dsexplore.views.sweep.sustained_view:SustainedWritesView",
    "dsexplore.aio.result:SweepResult": "dsexplore.views.sweep.sweep_view:SweepView",
    "dsexplore.aio.checkpoints.checkpoint_result:CheckpointCost": (
        "dsexplore.views.loading.checkpoint_view:CheckpointCostView"
    ),
    "dsexplore.aio.offload.offload_cost:OffloadCost": "dsexplore.views.offload.offload_view:OffloadCostView",
    "dsexplore.aio.data_loaders.feeding_result:FeedingResult": "dsexplore.views.feeding.feeding_view:FeedingView",
    "dsexplore.aio.checkpoints.loading_result:LoadingResult": "dsexplore.views.loading.loading_view:LoadingView",
    "dsexplore.analysis.hangs.hang_report:HangReport": "dsexplore.views.hang.hang_view:HangView",
    "dsexplore.comm.sweep_result:CommSweep": "dsexplore.views.comm_sweep.comm_sweep_view:CommSweepView",
    "dsexplore.cost.calibrate:Calibration": "dsexplore.views.comm_sweep.comm_sweep_view:CalibrationView",
    "dsexplore.cost.prediction:Prediction": "dsexplore.views.cost.prediction_view:PredictionView",
    "dsexplore.cost.mesh_comparison:MeshComparison": "dsexplore.views.cost.mesh_choice_view:MeshComparisonView",
    "dsexplore.numerics.numerics_report:NumericsReport": "dsexplore.views.numerics.numerics_view:NumericsView",
    "dsexplore.analysis.numeric_difference:NumericDifference": (
        "dsexplore.views.numerics.numeric_difference_view:NumericDifferenceView"
    ),
    "dsexplore.comm.log_summary:CommsSummary": "dsexplore.views.log.log_view:CommsSummaryView",
}


def view_class(kind: type) -> Callable[[Any], View] | None:
    """Return the view registered in `VIEWS` for a class or for its nearest base class, or None if there is none."""
    for base in kind.__mro__:
        home = VIEWS.get(f"{base.__module__}:{base.__qualname__}")
        if home is not None:
            module, _, name = home.partition(":")
            view: Callable[[Any], View] = getattr(import_module(module), name)
            return view
    return None


def view_of(shown: object) -> View:
    """Return the view of an object.

    Raises:
        TypeError: no class of the object is registered in `VIEWS`.
    """
    view = view_class(type(shown))
    if view is not None:
        return view(shown)
    raise TypeError(f"no view is registered for {type(shown).__name__}: add its line to dsexplore.views.VIEWS")
