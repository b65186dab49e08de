"""The view of an `OffloadCost`.

Modules: ``views/aio/disk_views.py``.
"""

from __future__ import annotations

import pytest

from dsexplore._internal.display import plain_text
from dsexplore._internal.views.aio.disk_views import OffloadCostView
from tests.aio.test_offload import cost


def test_the_bar_is_the_step() -> None:
    found = cost(parameters=True, step_seconds=5.0)
    view = OffloadCostView(found)
    widths = [trace.x[0] for trace in view.figure().data]
    assert sum(widths) == pytest.approx(5.0 + found.exposed)
    assert plain_text(found).splitlines()[1] == found.verdict()
    assert found.verdict().partition(":")[0] in view.html()
