"""The view of a `CheckpointCost`.

Modules: ``views/aio/disk_views.py``.
"""

from __future__ import annotations

import pytest

from dsexplore._internal.display import plain_text
from dsexplore._internal.views.aio.disk_views import CheckpointCostView
from tests.aio.checkpoints.test_predict_checkpoint import cost


def test_the_text_begins_with_the_verdict() -> None:
    found = cost()
    what, verdict, _, first, *_ = plain_text(found).splitlines()
    assert what == ("checkpoints of tensor, 572.2 MiB on 4 ranks, to ext4 on /dev/nvme0 (disk, direct I/O), predicted")
    assert verdict == found.verdict()
    assert first.split()[:7] == ["torch.save", "rank", "0", "6", "s", "6", "s"]


def test_bars_are_the_seconds_until_all_is_on_the_disk() -> None:
    found = cost()
    figure = CheckpointCostView(found).figure()
    sums = [sum(parts) for parts in zip(*(trace.x for trace in figure.data), strict=True)]
    assert sums == pytest.approx([method.save for method in found.methods])
    assert "affordable every" in CheckpointCostView(found).html()
