"""Views: what each kind of object looks like. One file per view; all are imported only when something is drawn.

To add a view, write a subclass of `dsexplore.display.View` that takes the object, and add its line to `VIEWS`.
"""

from __future__ import annotations

from importlib import import_module

from dsexplore.display import Displayable, View, view_of

VIEWS = {
    # the class that is shown: the view that shows it
    "dsexplore.trace.trace:Trace": "dsexplore.views.trace:TraceView",
    "dsexplore.sharding.layout:Sharding": "dsexplore.views.sharding:ShardingView",
    "dsexplore.trace.diff:TraceDiff": "dsexplore.views.diff:TraceDiffView",
    "dsexplore.aio.result:SweepResult": "dsexplore.views.sweep:SweepView",
    "dsexplore.comm.summary:CommsSummary": "dsexplore.views.comms_log:CommsSummaryView",
}


@view_of.register(Displayable)
def _listed_view(shown: Displayable) -> View:
    for kind in type(shown).__mro__:
        home = VIEWS.get(f"{kind.__module__}:{kind.__qualname__}")
        if home is not None:
            module, _, name = home.partition(":")
            view: View = getattr(import_module(module), name)(shown)
            return view
    raise TypeError(f"no view is registered for {type(shown).__name__}: add its line to dsexplore.views.VIEWS")
