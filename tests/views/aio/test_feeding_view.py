"""The view of a `FeedingResult`.

Modules: ``views/aio/disk_views.py``.
"""

from __future__ import annotations

from dsexplore._internal.views.aio.disk_views import FeedingView
from tests.aio.data_loaders.test_feeding_result import feeding


def test_bars_are_samples_per_second() -> None:
    view = FeedingView(feeding(2, 1.0, 19.0, step=0.08))
    figure = view.figure()
    assert list(figure.data[0].y) == ["the loader gives", "steps take", "all processors could"]
    assert list(figure.data[0].x) == [320.0, 400.0, 1280.0]
    assert "they are the limit" in view.html()
