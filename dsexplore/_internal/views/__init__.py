"""Views: how each kind of object is rendered, one folder per subject. A view is imported on first use.

To add a view, write a subclass of `views.view.View` that takes the object, and add its line to `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dsexplore._internal.views.view import View

_ROOT = "dsexplore._internal."
VIEWS = {
    # the class that is shown: the view that shows it, both from `dsexplore._internal` on
    "trace.trace:Trace": "views.trace.trace_view:TraceView",
    "trace.trace:TraceDiff": "views.trace.diff_view:TraceDiffView",
    "analysis.plan_difference:PlanDifference": "views.trace.diff_view:PlanDifferenceView",
    "analysis.findings.finding:Findings": "views.trace.headline_view:FindingsView",
    "analysis.world_map:WorldMap": "views.world_map.world_map_view:WorldMapView",
    "analysis.parameter_history:ParameterHistory": ("views.trace.parameter_history_view:ParameterHistoryView"),
    "analysis.step_timeline:Timeline": "views.timeline.timeline_view:TimelineView",
    "analysis.headline:Headline": "views.trace.headline_view:HeadlineView",
    "analysis.skew:Skew": "views.timeline.skew_view:SkewView",
    "sharding.layout:Sharding": "views.sharding.sharding_view:ShardingView",
    "sharding.redistribution:Redistribution": ("views.sharding.redistribution_view:RedistributionView"),
    "aio.sustained:SustainedWrites": "views.aio.disk_views:SustainedWritesView",
    "aio.sweeps.result:SweepResult": "views.aio.sweep_view:SweepView",
    "aio.checkpoints.predict_checkpoint:CheckpointCost": "views.aio.disk_views:CheckpointCostView",
    "aio.offload:OffloadCost": "views.aio.disk_views:OffloadCostView",
    "aio.data_loaders.feeding_result:FeedingResult": "views.aio.disk_views:FeedingView",
    "aio.checkpoints.loading_result:LoadingResult": "views.aio.disk_views:LoadingView",
    "analysis.hangs.hang_report:HangReport": "views.ranks.hang_view:HangView",
    "comm.sweeps.sweep_result:CommSweep": "views.comm.comm_sweep_view:CommSweepView",
    "cost.collectives.calibrate:Calibration": "views.comm.comm_sweep_view:CalibrationView",
    "cost.step.prediction:Prediction": "views.cost.prediction_view:PredictionView",
    "cost.meshes.mesh_comparison:MeshComparison": "views.cost.mesh_choice_view:MeshComparisonView",
    "numerics.numerics_report:NumericsReport": "views.numerics.numerics_view:NumericsView",
    "analysis.numeric_difference:NumericDifference": ("views.numerics.numeric_difference_view:NumericDifferenceView"),
    "comm.logs.log_summary:CommsSummary": "views.comm.log_view:CommsSummaryView",
}


def view_class(kind: type) -> Callable[[Any], View] | None:
    """Return the view registered in `VIEWS` for a class or for its nearest base class, or None if there is none."""
    for base in kind.__mro__:
        home = VIEWS.get(f"{base.__module__}:{base.__qualname__}".removeprefix(_ROOT))
        if home is not None:
            module, _, name = home.partition(":")
            view: Callable[[Any], View] = getattr(import_module(_ROOT + module), name)
            return view
    return None


def view_of(shown: object) -> View:
    """Return the view of an object.

    Raises:
        TypeError: No class of the object is registered in `VIEWS`.
    """
    view = view_class(type(shown))
    if view is not None:
        return view(shown)
    raise TypeError(
        f"no view is registered for {type(shown).__name__}: add its line to dsexplore._internal.views.VIEWS"
    )
