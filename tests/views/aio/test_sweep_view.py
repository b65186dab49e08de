"""The view of a sweep of a disk: text, static page, figures, explorer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.measurements import Conditions, Operation, RoundSlice, Sample
from dsexplore._internal.aio.sweeps.references import Reference
from dsexplore._internal.errors import UsageError
from dsexplore._internal.views.aio.sweep_points import cells, directions, limit_of, points
from dsexplore._internal.views.aio.sweep_view import SweepView
from dsexplore._internal.views.page.style import heat
from dsexplore.aio import AioConfig, SweepResult

BLOCKS, DEPTHS, THREADS = (1 << 18, 1 << 20), (4, 8, 16), (1, 2)


def sample(config: AioConfig, operation: Operation, number: int) -> Sample:
    speed = 1e9 * config.queue_depth**0.5 * config.thread_count * (1 if config.overlap_events else 0.8)
    seconds = (1 << 30) / (speed * (1 + number / 100))
    return Sample(operation, config, 1 << 30, seconds, 0.01, 0.0, 1e-3 * config.queue_depth, 2e-3, 3e-3, 9e-3)


def invented() -> SweepResult:
    """Return a result of a disk that is not there."""
    configs = [AioConfig(b, d, t, False, o) for b in BLOCKS for d in DEPTHS for t in THREADS for o in (True, False)]
    operations: tuple[Operation, ...] = ("read", "write")
    measured = tuple(
        RoundSlice("finals", number, sample(config, operation, number))
        for number in range(3)
        for config in configs
        for operation in operations
    )
    disk = Disk("/data/<b>x</b>", "ext4", "/data", "/dev/nvme0", "FAST <1>", "disk", 1, True, None, 512, 512)
    conditions = Conditions(
        "linux-aio",
        {"io_uring": "<i>no</i>"},
        "tensor",
        "overwrite",
        1 << 30,
        0.5,
        60.0,
        0.1,
        1.0,
        None,
        "Linux",
        "now",
    )
    references = (
        Reference("ring", "read", AioConfig(), (9e9, 9.5e9, 9.2e9), "ring"),
        Reference("ring", "write", AioConfig(), (9e9,), "ring"),
    )
    return SweepResult(disk, conditions, measured, references, bytes_written=1 << 30, elapsed=60.0)


@pytest.fixture
def result() -> SweepResult:
    return invented()


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(markup: str) -> Text:
    reader = Text()
    reader.feed(markup)
    return reader


def test_bundle(result: SweepResult) -> None:
    bundle = result._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"].splitlines()[1].startswith("Take ")
    assert result._repr_mimebundle_() == bundle


def test_a_long_sentence_is_told_whole(result: SweepResult, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = " ".join(["the rates scatter too much to be sure"] * 6)
    monkeypatch.setattr(SweepResult, "verdict", lambda _: sentence)
    assert SweepView(result).text().splitlines()[1] == sentence


def test_html_is_complete_and_escaped(result: SweepResult) -> None:
    markup = SweepView(result).html()
    text = read(markup.replace("<wbr>", ""))
    assert not {"script", "b", "i", "img", "link", "iframe"} & set(text.tags)
    words = " ".join(text.words)
    assert '"block_size"' in words
    assert "/data/<b>x</b>" in words
    assert "<i>no</i>" in words
    assert words.count(" 1 thread ") == words.count(" 2 threads ") == 3  # read, write, mix
    assert len(re.findall(r"depth 4 8 ", words)) == 3
    assert f"{result.best().rate / 1e9:.2f}" in words
    assert "×" in words
    assert re.search(r"ring .*9\.20 GB/s", words)


def test_page(result: SweepResult, tmp_path: Path) -> None:
    page = result.to_html(tmp_path / "sweep.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Disk throughput" in page
    assert "http" not in page.replace("http-equiv", "")


def test_each_figure_holds_the_rates(result: SweepResult) -> None:
    heat = result.figure()
    assert [trace.type for trace in heat.data] == ["heatmap", "heatmap"]
    assert heat.data[1].z[0][2] == pytest.approx(2 * 4 * 1.01, rel=0.01)
    assert [a.text for a in heat.layout.annotations] == ["1 thread", "2 threads"]
    depth = result.figure(kind="depth", operation="read")
    assert list(depth.data[0].x) == [4, 8, 16]
    assert depth.layout.shapes[0].y0 == pytest.approx(9.2)
    latency = result.figure(kind="latency", operation="write")
    assert len(latency.data) == 4
    assert latency.layout.shapes[0].x0 == pytest.approx(9.0)
    parallel = result.figure(kind="parallel")
    assert [d.label for d in parallel.data[0].dimensions][:3] == ["block size", "queue depth", "threads"]
    assert len(parallel.data[0].dimensions[0]["values"]) == 24


def test_the_limit_of_the_mix_is_the_mix_of_the_limits(result: SweepResult) -> None:
    limit = limit_of(result, "mix")
    assert limit is not None
    assert limit[0] == pytest.approx(2 / (1 / 9.2e9 + 1 / 9e9))
    assert limit_of(replace(result, references=result.references[:1]), "mix") is None


def test_what_a_setting_exceeds_is_not_called_the_disks_limit(result: SweepResult) -> None:
    limit = limit_of(result, "read")
    assert limit is not None
    assert limit[1].startswith("the disk's limit, 9.20 GB/s")
    assert max(point.rate for point in points(result, "read")) < limit[0]
    slow = tuple(replace(each, rates=(2.65e9,)) for each in result.references)
    limit = limit_of(replace(result, references=slow), "read")
    assert limit is not None
    assert limit[1].startswith("the fastest other tool, which settings here exceed, 2.65 GB/s")


def test_shades_begin_at_nothing_and_have_a_bar(result: SweepResult) -> None:
    html = result._repr_mimebundle_()["text/html"]
    every = points(result, "read")
    top = max(point.rate for point in every)
    least = min(point.rate for count in THREADS for point in cells(result, "read", count).values())
    assert least > top / 10
    assert f"{heat(round(50 * least / top))}" in html, "the slowest setting is not white"
    assert f"{top / 1e9:.2f} GB/s</p>" in html


def test_wrong_choices(result: SweepResult) -> None:
    with pytest.raises(UsageError, match="kind 'pie' is unknown: it is one of heatmap"):
        result.figure(kind="pie")
    with pytest.raises(UsageError, match="operation 'append' was not measured: there is read, write, mix"):
        result.figure(operation="append")
    with pytest.raises(UsageError, match="no argument 'size'"):
        result.figure(size=3)
    with pytest.raises(UsageError, match="it takes none"):
        result.explore(size=3)


def click(picture: Any, trace: int, *place: int) -> None:
    """Send what the picture's script sends when a point is clicked."""
    point = picture.spec["data"][trace]["customdata"]
    for at in place:
        point = point[at]
    picture._handle_custom_msg({"type": "click", "customdata": point, "index": list(place)}, [])


def test_a_click_shows_the_block_of_the_point(result: SweepResult) -> None:
    app = result.explore()
    assert app.selection == result.best().config
    picture, block = app.children[1], app.children[2].children[0]
    kind, operation = app.children[0].children
    kind.value = "heatmap"
    click(picture, 1, 0, 1)
    assert (app.selection.block_size, app.selection.queue_depth, app.selection.thread_count) == (1 << 18, 8, 2)
    assert AioConfig.from_dict(json.loads(block.value)) == app.selection
    kind.value, operation.value = "latency", "read"
    click(picture, 0, 2)
    assert (app.selection.queue_depth, app.selection.thread_count) == (16, 1)
    kind.value = "depth"
    click(picture, 1, 0)
    assert (app.selection.queue_depth, app.selection.thread_count) == (4, 2)
    picture._handle_custom_msg({"type": "click", "customdata": "", "index": [0]}, [])  # a cell that was not measured
    assert (app.selection.queue_depth, app.selection.thread_count) == (4, 2)
    kind.value = "parallel"
    assert picture.spec["data"][0]["type"] == "parcoords"


def test_a_sweep_that_was_interrupted_at_once_is_shown(result: SweepResult) -> None:
    control = AioConfig()
    result = replace(result, measured=tuple(m for m in result.measured if m.sample.config != control)[:1])
    assert "No setting was compared with the default yet." in SweepView(result).html()
    assert SweepView(result).figure().data
    assert result.explore().selection == control


def test_one_direction_has_no_mix(result: SweepResult) -> None:
    result = replace(result, measured=tuple(m for m in result.measured if m.sample.operation == "read"))
    assert directions(result) == ["read"]
    assert result.figure().data[0].type == "heatmap"


def test_each_figure_has_a_static_twin_of_its_own(result: SweepResult) -> None:
    view, kinds = SweepView(result), ("heatmap", "depth", "latency")
    twins = {kind: view.still(view.figure(kind, "read"), kind=kind, operation="read") for kind in kinds}
    assert len(set(twins.values())) == 3
    assert [twin.count('<svg class="still"') for twin in twins.values()] == [0, 1, 1]
    assert "read: GB/s by block size and queue depth" in twins["heatmap"]
    assert "latency of a request, ms by GB/s" in twins["latency"]
    assert "the disk&#x27;s limit" in twins["depth"]
