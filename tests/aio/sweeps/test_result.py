"""Results of sweeps with given rates: what they recommend, say and save.

Modules: ``aio/sweeps/result.py``, ``aio/sweeps/measurements.py``, ``aio/sweeps/result_text.py``,
``aio/sweeps/result_rows.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.measure import Operation, Sample
from dsexplore._internal.aio.sweeps.measurements import Conditions
from dsexplore._internal.aio.sweeps.reference_rates import Reference
from dsexplore._internal.aio.sweeps.rounds import Phase, RoundSlice, mix
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig, SweepResult
from tests.damaged import assert_named, damaged

CONTROL, DEEP = AioConfig(), AioConfig(queue_depth=32)


def sample(config: AioConfig, operation: Operation, gb_s: float) -> Sample:
    nbytes = 1 << 30
    seconds = nbytes / (gb_s * 1e9)
    return Sample(
        operation, config, nbytes, seconds, 0.01, 0.0 if operation == "read" else seconds, 1e-3, 2e-3, 3e-3, 9e-3
    )


def result_of(rates: list[dict[AioConfig, tuple[float, float]]], phase: Phase = "finals") -> SweepResult:
    measured = tuple(
        RoundSlice(phase, number, sample(config, operation, rate))
        for number, by_config in enumerate(rates)
        for config, pair in by_config.items()
        for operation, rate in zip(("read", "write"), pair, strict=True)
    )
    disk = Disk("/data/x", "ext4", "/data", "/dev/nvme0n1", "FAST", "disk", 1 << 40, True, None, 512, 512)
    conditions = Conditions(
        "linux-aio",
        {"io_uring": "forbidden"},
        "tensor",
        "overwrite",
        1 << 30,
        0.5,
        60.0,
        0.15,
        1.0,
        0.0,
        "Linux",
        "now",
    )
    references = (Reference("ring", "read", DEEP, (3.1e9, 3.3e9, 3.2e9), "ring"),)
    return SweepResult(disk, conditions, measured, references, bytes_written=5 << 30, elapsed=42.0)


@pytest.fixture
def better() -> SweepResult:
    return result_of([{CONTROL: (2.0, 1.0), DEEP: (3.0, 1.5)}, {CONTROL: (2.1, 1.1), DEEP: (3.15, 1.65)}] * 2)


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


def test_best(better: SweepResult) -> None:
    best = better.best()
    assert (best.config, best.fastest, best.tied) == (DEEP, DEEP, (DEEP,))
    assert best.ratio.value == pytest.approx(1.5)
    assert best.default_ratio.value == pytest.approx(1 / 1.5)
    assert best.rate == pytest.approx(mix({"read": 3.075e9, "write": 1.575e9}, 0.5))
    assert best.sentence() == (
        "Take 1 MiB × depth 32 × 1 thread, block submit, overlap: +50.0 % over the default (+50.0 to +50.0 %)."
    )
    assert best.fastest_ratio == best.ratio
    assert best.doubts == ()
    assert "Less than 5 % apart" not in str(better)


def test_an_unsure_gain_is_said_to_be_unsure() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (2.0, 0.5, 3.0, 1.0)])
    assert result.best().config == CONTROL
    assert (
        result.best()
        .sentence()
        .startswith(f"Keep the default: nothing measured is reliably faster. {DEEP} looks best, +31.6 % (")
    )
    assert "sweep again with more seconds" in result.best().sentence()
    wild = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (30.0, 0.5)])
    assert "looks best, +287.3 % (n 2): sweep again" in wild.best().sentence()


def test_one_measurement_is_never_sure() -> None:
    once = result_of([{CONTROL: (1.0, 1.0), DEEP: (16.9, 16.9)}])
    assert once.best().config == CONTROL
    assert once.to_ds_config() == CONTROL.to_ds_config()
    assert once.best().sentence() == (
        "Keep the default: each setting was measured only once, so give the sweep more seconds. "
        f"{DEEP} looked faster, but may not be."
    )


@pytest.mark.parametrize(
    ("disk", "conditions", "why"),
    [
        (
            {"direct": False, "why_buffered": "the filesystem refuses O_DIRECT (EINVAL)"},
            {},
            "the page cache was measured, not the disk, since the filesystem refuses O_DIRECT (EINVAL)",
        ),
        ({"kind": "memory", "direct": False}, {}, "these files live in memory, so no disk was measured"),
        ({"kind": "memory"}, {}, "these files live in memory, so no disk was measured"),
        (
            {"kind": "loop", "device": "/dev/loop3"},
            {},
            "/dev/loop3 is a loop device, whose data may come from the page cache: sweep where its file lies",
        ),
        (
            {},
            {"data_share": 0.25},
            "75 % of the file are holes or compressed, for which no disk is asked: sweep a file full of data, or a "
            "directory",
        ),
    ],
)
def test_what_was_not_measured_on_a_disk_keeps_the_default(
    better: SweepResult, disk: dict[str, object], conditions: dict[str, object], why: str
) -> None:
    doubtful = replace(
        better,
        disk=replace(better.disk, **disk),  # type: ignore[arg-type]
        conditions=replace(better.conditions, **conditions),  # type: ignore[arg-type]
    )
    best = doubtful.best()
    assert (best.config, best.fastest, best.doubts) == (CONTROL, DEEP, (why,))
    assert best.rate == doubtful.mixed_rate(CONTROL)
    assert doubtful.verdict() == f"Keep the default: {why}. {DEEP} looked faster, but may not be."
    assert doubtful.to_ds_config() == CONTROL.to_ds_config()


def test_a_file_that_is_nearly_full_of_data_is_not_doubted(better: SweepResult) -> None:
    assert replace(better, conditions=replace(better.conditions, data_share=0.96)).best().config == DEEP


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


def test_the_default_is_kept_when_it_is_as_good() -> None:
    result = result_of([{CONTROL: (2.0, 1.0), DEEP: (2.08, 1.04)}] * 3)
    tied = result.best()
    assert (tied.config, tied.fastest) == (CONTROL, DEEP)
    assert tied.sentence() == "The default is already within 3.8 % of the best setting found: nothing to gain."
    assert f"Less than 5 % apart, the cheapest first: {CONTROL}; {DEEP}." in result.lines()


def test_the_default_may_be_the_fastest() -> None:
    result = result_of([{CONTROL: (2.0, 1.0), DEEP: (1.9, 0.9)}] * 3)
    assert result.best().sentence() == "The default is the fastest setting found: nothing to gain."


def test_finals_alone_decide(better: SweepResult) -> None:
    lucky = result_of([{CONTROL: (1.0, 1.0), AioConfig(queue_depth=2): (9.0, 9.0)}], "descent")
    descent = tuple(RoundSlice("descent", 100, m.sample) for m in lucky.measured)
    better = replace(better, measured=descent + better.measured)
    assert better.best().config == DEEP
    assert len(better.to_frame()) == 6


def test_a_setting_that_was_dropped_cannot_win_by_the_luck_of_early_rounds() -> None:
    dropped = AioConfig(queue_depth=2)
    early = {CONTROL: (0.8, 0.8), DEEP: (1.1, 1.1), dropped: (1.0, 1.0)}  # the control met a hiccup
    result = result_of([early] * 3 + [{CONTROL: (1.0, 1.0), DEEP: (1.1, 1.1)}] * 9)
    best = result.best()
    assert (best.config, best.fastest) == (DEEP, DEEP)
    assert dropped in result.rounds


def test_an_unfinished_round_does_not_decide() -> None:
    other = AioConfig(queue_depth=2)
    whole = {CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3), other: (1.2, 1.2)}
    result = result_of([whole, whole, {CONTROL: (1.0, 1.0), other: (1.6, 1.6)}])
    best = replace(result, interrupted=True, unfinished_round=2).best()
    assert (best.config, best.fastest, best.tied) == (DEEP, DEEP, (DEEP,))
    assert best.ratio == pytest.approx((1.3, 1.3, 1.3, 2))


def test_an_interrupt_after_the_finals_drops_no_round_of_them(better: SweepResult) -> None:
    assert replace(better, interrupted=True).best() == better.best()
    assert better.best().ratio.n == 4


def test_before_a_round_of_the_finals_is_finished_the_search_decides() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3)}], "descent")
    measured = (*result.measured, RoundSlice("finals", 1, sample(CONTROL, "read", 1.0)))
    result = replace(result, measured=measured, interrupted=True, unfinished_round=1)
    assert result.best().fastest == DEEP
    assert result.mixed_rate(DEEP) == pytest.approx(1.3e9)


def test_a_sweep_that_is_cut_short_anywhere_says_what_it_knows() -> None:
    """Cut a sweep after each slice, also where only one of two tensor sizes was measured beside the control."""
    result = result_of([])
    sizes = product(("read", "write"), (32 << 20, 512 << 20))
    phases: tuple[tuple[Phase, int], ...] = (("descent", 1), ("finals", 2), ("finals", 3))
    rounds = product(phases, (DEEP, CONTROL, AioConfig(queue_depth=2)))
    slices = tuple(
        RoundSlice(phase, number, replace(sample(config, operation, 1.0), transfer=transfer))  # type: ignore[arg-type]
        for ((phase, number), config), (operation, transfer) in product(rounds, sizes)
    )
    for count in range(1, len(slices)):
        cut = replace(result, measured=slices[:count], interrupted=True, unfinished_round=slices[count - 1].round)
        text = str(cut)
        assert ("No setting was compared with the default yet." in text) == (count < 8) == (not cut.rounds)
        assert count < 8 or cut.best().config == CONTROL
        assert "Interrupted: the results so far." in text
        assert "Interrupted" in cut._repr_mimebundle_()["text/html"]


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


def test_the_rate_of_the_setting_to_take_has_an_interval(better: SweepResult) -> None:
    assert better.best().config == DEEP
    given = better.rate_interval()
    assert (given.n, given.low < given.value < given.high) == (4, True)
    rates = [mix({"read": read, "write": write}, 0.5) for read, write in ((3.0e9, 1.5e9), (3.15e9, 1.65e9))]
    assert given.value == pytest.approx((rates[0] * rates[1]) ** 0.5)
    once = result_of([{CONTROL: (1.0, 1.0)}]).rate_interval()
    assert once == (pytest.approx(1e9), 0.0, float("inf"), 1)
    cut = replace(better, measured=better.measured[:-1], interrupted=True, unfinished_round=3)  # before its last write
    assert SweepResult.from_json(cut.to_json()).rate_interval().n == 3


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
    assert lines[0] == better.verdict() == better.best().sentence()
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
