"""The view of a `LoadingResult`.

Modules: ``views/aio/disk_views.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.views.aio.disk_views import LoadingView
from tests.aio.checkpoints.test_loading_result import USUAL, loader, loading

FOUND = loading(USUAL, loader("other", [2.0], 0.5))


def test_the_text_begins_with_the_verdict() -> None:
    what, verdict, head, *rows = plain_text(FOUND).splitlines()
    assert what == "model.pt: torch.save (1 file, 1 GiB), on ext4 on /dev/nvme0 (disk, direct I/O), measured"
    assert verdict == FOUND.verdict()
    assert head.split() == ["loaded", "with", "cold", "warm", "of", "it", "copying", "rate,", "cold", "disk", "alone"]
    assert rows[0].split()[:7] == ["torch.load", "4.1", "s", "1", "s", "0", "s"]
    assert rows[0].endswith(" 1 s")


def test_bars_are_the_seconds_of_a_cold_load() -> None:
    figure = LoadingView(FOUND).figure()
    sums = [sum(parts) for parts in zip(*(trace.x for trace in figure.data), strict=True)]
    assert list(figure.data[0].y) == ["torch.load", "other", "the disk alone"]
    assert sums == pytest.approx([4.1, 2.0, 1.0])


def test_names_are_escaped() -> None:
    hostile = loading(replace(USUAL, name="<script>x</script>"))
    assert "<script>" not in LoadingView(hostile).html()


def test_there_are_no_options() -> None:
    with pytest.raises(UsageError, match="has no argument 'kind'"):
        FOUND.figure(kind="x")
