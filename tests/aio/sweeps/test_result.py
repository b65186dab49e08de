"""Results of sweeps with given rates: what they say, save and compare.

Modules: ``aio/sweeps/result.py``, ``aio/sweeps/measurements.py``, ``aio/sweeps/result_text.py``,
``aio/sweeps/result_rows.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dsexplore._internal.aio.sweeps.measurements import RoundSlice, mix
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig, SweepResult
from tests.aio.sweeps.results import CONTROL, DEEP, better_result, result_of, sample
from tests.damaged import assert_named, damaged


@pytest.fixture
def better() -> SweepResult:
    return better_result()


@pytest.mark.parametrize(("write", "virtual", "said"), [(17.0, True, True), (17.0, False, False), (12.0, True, False)])
def test_a_cache_that_answers_fsync_is_told(write: float, virtual: bool, said: bool) -> None:
    result = result_of([{CONTROL: (2.0, write)}] * 3)  # an fsync takes as long as its writes
    result = replace(result, disk=replace(result.disk, is_virtual=virtual))
    text = "/dev/nvme0n1 is a virtual disk, and no usual drive writes 8.50 GB/s (7.92 GiB/s) with fsync: a cache"
    assert (text in str(result)) == said


def test_what_a_slow_disk_left_out_is_told(better: SweepResult) -> None:
    better = replace(better, conditions=replace(better.conditions, left_out="At 50 MB/s there is no time."))
    assert "At 50 MB/s there is no time." in better.lines()
    assert SweepResult.from_json(better.to_json()).conditions.left_out == "At 50 MB/s there is no time."


def test_mix() -> None:
    assert mix({"read": 3e9, "write": 1e9}, 0.5) == pytest.approx(1.5e9)
    assert mix({"read": 3e9, "write": 1e9}, 1.0) == pytest.approx(3e9)
    assert mix({"write": 1e9}, 0.3) == 1e9


def test_settings_are_judged_at_each_tensor_size() -> None:
    """Compare means over the sizes, and keep the default if a setting is slower at one of them."""

    def at_sizes(small: float, large: float) -> SweepResult:
        measured = []
        for number, (config, ratio) in product(range(3), ((CONTROL, (1.0, 1.0)), (DEEP, (small, large)))):
            for transfer, rate in zip((32 << 20, 512 << 20), ratio, strict=True):
                for operation in ("read", "write"):
                    moved = replace(sample(config, operation, rate), transfer=transfer)  # type: ignore[arg-type]
                    measured.append(RoundSlice("finals", number, moved))
        return replace(result_of([]), measured=tuple(measured))

    best = at_sizes(1.1, 1.3).best()
    assert best.config == DEEP
    assert best.ratio.value == pytest.approx((1.1 * 1.3) ** 0.5)
    assert best.ratio.n == 3
    assert at_sizes(1.1, 1.3).mixed_rate(DEEP) == pytest.approx((1.1 * 1.3) ** 0.5 * 1e9)
    assert "read of 32 MiB tensors: median 1.10 GB/s (1.02 GiB/s), 1.10–1.10 GB/s, n 3" in at_sizes(1.1, 1.3).lines()
    slower = at_sizes(0.94, 1.3).best()
    assert slower.config == CONTROL
    assert slower.doubts == (f"{DEEP} is faster on average, but 6.0 % slower at one of the tensor sizes",)
    assert at_sizes(1.0, 1.06).best().config == CONTROL  # 3 % on average


def test_an_older_file_is_read(better: SweepResult) -> None:
    kept = json.loads(json.dumps(better.to_json()))
    for key in ("transfers", "data_share", "processes", "most_written", "loop"):
        del kept["conditions"][key]
    del kept["spent"]
    for m in kept["measured"]:
        del m["sample"]["transfer"]
    assert SweepResult.from_json(kept) == better
    assert SweepResult.from_json(kept).conditions.processes == 1


def test_what_was_left_out_because_no_more_may_be_written_is_said(better: SweepResult) -> None:
    spent = replace(better, spent=True, conditions=replace(better.conditions, most_written=5 << 30))
    ended = "Ended when the 5 GiB that may be written were used up: raise max_written for more rounds."
    assert ended in spent.lines()
    assert spent.best().config == DEEP


def test_block_has_real_integers_and_booleans(better: SweepResult) -> None:
    block = better.to_ds_config()
    assert AioConfig.from_dict(block) == DEEP
    assert json.loads(json.dumps(block)) == block
    assert block["aio"]["single_submit"] is False
    assert block["aio"]["overlap_events"] is True
    assert type(block["aio"]["queue_depth"]) is int


def test_frame(better: SweepResult) -> None:
    rows = {(row["operation"], row["queue_depth"]): row for row in better.to_frame().to_dicts()}
    assert len(rows) == 4
    row = rows["write", 32]
    assert (row["gb_s"], row["min_gb_s"], row["max_gb_s"], row["n"]) == pytest.approx((1.575, 1.5, 1.65, 4))
    assert row["gib_s"] == pytest.approx(1.575e9 / 2**30)
    assert row["durable_gb_s"] == pytest.approx(1.575 / 2)
    assert row["ratio"] == pytest.approx(1.5)
    assert (row["p50_ms"], row["p95_ms"], row["p99_ms"], row["max_ms"]) == pytest.approx((1, 2, 3, 9))
    assert row["cpu_ms_per_gib"] == pytest.approx(10)
    assert rows["read", 8]["ratio"] == 1.0
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((1.5, 1.5))
    assert len(better.to_frame(slices=True)) == 16


@pytest.mark.parametrize(
    ("rates", "ratio"),
    [({CONTROL: (1.0, 1.0), DEEP: (2.0, 2.0)}, 2.0), ({DEEP: (2.0, 2.0)}, None)],
)
def test_the_ratio_of_one_round_has_no_interval(
    rates: dict[AioConfig, tuple[float, float]], ratio: float | None
) -> None:
    """Give no interval to the ratio of one round, and no ratio if the default was not measured in it."""
    rows = [row for row in result_of([rates]).to_frame().to_dicts() if row["queue_depth"] == 32]
    assert [(row["ratio"], row["ratio_low"], row["ratio_high"]) for row in rows] == [(ratio, None, None)] * 2


def test_save_and_load(better: SweepResult, tmp_path: Path) -> None:
    path = better.save(tmp_path / "sweep.json")
    loaded = SweepResult.load(path)
    assert loaded == better
    assert loaded.to_frame().equals(better.to_frame())
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a saved sweep"),
        ("[1]", "is not a saved sweep: write one"),
        ('{"format": "dsexplore sweep", "version": 99}', "newer dsexplore"),
        ('{"format": "dsexplore sweep", "version": 1}', "is a damaged sweep: the result.disk is missing"),
    ],
)
def test_files_that_are_no_sweeps(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        SweepResult.load(path)
    assert str(path) in str(caught.value)


def test_one_wrong_value_is_read_or_refused_by_the_name_of_file_and_key(better: SweepResult) -> None:
    refused: list[tuple[str, str]] = []
    for where, wrong in damaged(json.loads(json.dumps(better.to_json()))):
        try:
            loaded = SweepResult.from_json(wrong, "sweep.json")
        except UsageError as error:
            refused.append((where, str(error)))
            continue
        loaded.to_frame(slices=True)
        if len(loaded.measured) == len(better.measured):
            str(loaded)
    assert_named(refused)
    assert len(refused) > 500


def test_compare(better: SweepResult) -> None:
    slower = result_of([{CONTROL: (1.0, 0.5), DEEP: (1.0, 0.5)}] * 2)
    frame = better.compare(slower)
    ratios = {(row["operation"], row["queue_depth"]): row["ratio"] for row in frame.to_dicts()}
    assert ratios["read", 8] == pytest.approx(2.05)
    assert ratios["write", 32] == pytest.approx(3.15)
    with pytest.raises(UsageError, match="no setting in common"):
        better.compare(result_of([{AioConfig(queue_depth=1): (1.0, 1.0)}]))
    with pytest.raises(TypeError, match="takes a SweepResult, not dict"):
        better.compare({})  # type: ignore[arg-type]


def test_sweeps_of_other_tensors_are_compared_at_the_sizes_that_both_moved() -> None:
    """Compare one disk with itself, where small tensors have half the rate of large ones."""
    rates = {8 << 20: 1.0, 32 << 20: 2.0, 512 << 20: 4.0}

    def sweep_of(*sizes: int, **how: object) -> SweepResult:
        result = result_of([])
        conditions = replace(result.conditions, transfers=sizes, **how)  # type: ignore[arg-type]
        measured = tuple(
            RoundSlice("finals", 1, replace(sample(CONTROL, "read", rates[nbytes]), transfer=nbytes))
            for nbytes in sizes
        )
        return replace(result, conditions=conditions, measured=measured)

    small, large = sweep_of(8 << 20, 32 << 20), sweep_of(32 << 20, 512 << 20, processes=4, size=2 << 30)
    (row,) = small.compare_rows(large)
    assert (row["gb_s"], row["other_gb_s"], row["ratio"]) == pytest.approx((2.0, 2.0, 1.0))
    assert small.unlike(large) == [
        "Tensors are of 8 MiB, 32 MiB and of 32 MiB, 512 MiB: the rates below are those of 32 MiB.",
        "Processes at once are 1 and 4: rates are of all together.",
        "Files hold 1 GiB and 2 GiB.",
    ]
    assert small.unlike(small) == []
    apart = sweep_of(512 << 20, write_mode="fresh")
    assert [row["ratio"] for row in small.compare_rows(apart)] == pytest.approx([1.5 / 4.0])
    assert small.unlike(apart) == [
        "Tensors are of 8 MiB, 32 MiB and of 512 MiB: the rates below are those of all.",
        "Writes are overwrite and fresh.",
    ]


def test_text(better: SweepResult) -> None:
    lines = better.lines()
    assert lines[0] == better.verdict() == better.best().verdict()
    assert "read: median 3.08 GB/s (2.86 GiB/s), 3.00–3.15 GB/s, n 4" in lines
    assert "write with fsync: median 788 MB/s (751 MiB/s)" in lines
    assert not [line for line in lines if line.startswith("read with fsync")]
    latency = "latency of a request: p50 1.00, p95 2.00, p99 3.00, longest 9.00 ms; 10.0 ms of CPU per GiB"
    assert {f"read {latency}", f"write {latency}"} <= set(lines)
    assert lines[-1] == "5 GiB written (overwrite) in 42 s"
    assert str(better).splitlines() == [
        "ext4 on /dev/nvme0n1 (disk, direct I/O); tensor mode by linux-aio (loop in Python)",
        *lines,
        f"{CONTROL}: read 2.05 GB/s (1.91 GiB/s), write 1.05 GB/s (1001 MiB/s); the default",
        "ring, read: median 3.20 GB/s (2.98 GiB/s), n 3; 1 MiB × depth 32 × 1 thread, block submit, overlap; ring",
        "io_uring did not run: forbidden",
    ]


def test_text_of_many_settings_is_short() -> None:
    many = {AioConfig(queue_depth=depth): (1 + depth / 100, 1.0) for depth in range(1, 13)}
    text = str(result_of([many] * 2)).splitlines()
    others = [line for line in text if "× the default" in line or line.endswith("; the default")]
    depths = [int(line.split("depth ")[1].split()[0]) for line in others]
    assert depths == sorted(depths, reverse=True)
    assert len(others) == 8
    assert "… and 3 slower settings" in text


def test_a_result_without_a_complete_round() -> None:
    result = replace(result_of([{DEEP: (1.0, 1.0)}]), interrupted=True, unfinished_round=0)
    assert result.lines() == ["No setting was compared with the default yet.", "Interrupted: the results so far."]
    with pytest.raises(UsageError, match="run it for longer"):
        result.best()
