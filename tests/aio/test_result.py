"""What a result says, from measurements that are made up to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsexplore.aio import AioConfig, SweepResult
from dsexplore.aio.disk import Disk
from dsexplore.aio.measure import Operation, Sample
from dsexplore.aio.result import Conditions, Reference
from dsexplore.aio.rounds import Measured, mix
from dsexplore.errors import UsageError

CONTROL, DEEP = AioConfig(), AioConfig(queue_depth=32)


def sample(config: AioConfig, operation: Operation, gb_s: float) -> Sample:
    nbytes = 1 << 30
    seconds = nbytes / (gb_s * 1e9)
    return Sample(
        operation, config, nbytes, seconds, 0.01, 0.0 if operation == "read" else seconds, 1e-3, 2e-3, 3e-3, 9e-3
    )


def result_of(rates: list[dict[AioConfig, tuple[float, float]]], phase: str = "finals") -> SweepResult:
    measured = [
        Measured(phase, number, sample(config, operation, rate))
        for number, by_config in enumerate(rates)
        for config, pair in by_config.items()
        for operation, rate in zip(("read", "write"), pair, strict=True)
    ]
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
    references = [Reference("ring", "read", DEEP, (3.1e9, 3.3e9, 3.2e9), "ring")]
    return SweepResult(disk, conditions, measured, references, bytes_written=5 << 30, elapsed=42.0)


@pytest.fixture
def better() -> SweepResult:
    return result_of([{CONTROL: (2.0, 1.0), DEEP: (3.0, 1.5)}, {CONTROL: (2.1, 1.1), DEEP: (3.15, 1.65)}] * 2)


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


def test_an_unsure_gain_is_said_to_be_unsure() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (2.0, 0.5, 3.0, 1.0)])
    assert "looks best: +31.6 % over the default (" in result.best().sentence()
    assert "scatter too much to be sure" in result.best().sentence()
    wild = result_of([{CONTROL: (1.0, 1.0), DEEP: (rate, rate)} for rate in (30.0, 0.5)])
    assert "looks best: +287.3 % over the default (n 2), but" in wild.best().sentence()
    once = result_of([{CONTROL: (1.0, 1.0), DEEP: (2.0, 2.0)}])
    assert once.best().sentence().endswith("+100.0 % over the default, measured once.")


def test_the_default_is_kept_when_it_is_as_good() -> None:
    tied = result_of([{CONTROL: (2.0, 1.0), DEEP: (2.008, 1.004)}] * 3).best()
    assert tied.config == CONTROL
    assert tied.sentence() == "The default is already within 0.4 % of the best setting found: nothing to gain."
    near = result_of([{CONTROL: (2.0, 1.0), DEEP: (2.02, 1.01)}] * 3).best()
    assert near.config == DEEP  # the block that is shown beside the sentence
    assert (
        near.sentence() == f"The default is already within 1.0 % of the best setting found: little to gain by {DEEP}."
    )


def test_the_default_may_be_the_fastest() -> None:
    result = result_of([{CONTROL: (2.0, 1.0), DEEP: (1.9, 0.9)}] * 3)
    assert result.best().sentence() == "The default is the fastest setting found: nothing to gain."


def test_finals_alone_decide(better: SweepResult) -> None:
    lucky = result_of([{CONTROL: (1.0, 1.0), AioConfig(queue_depth=2): (9.0, 9.0)}], "descent")
    better.measured[:0] = [Measured("descent", 100, m.sample) for m in lucky.measured]
    assert better.best().config == DEEP
    assert len(better.to_frame()) == 6


def test_a_setting_that_was_dropped_cannot_win_by_the_luck_of_early_rounds() -> None:
    dropped = AioConfig(queue_depth=2)
    early = {CONTROL: (0.2, 0.2), DEEP: (1.1, 1.1), dropped: (1.0, 1.0)}  # the control met a hiccup
    result = result_of([early] * 3 + [{CONTROL: (1.0, 1.0), DEEP: (1.1, 1.1)}] * 9)
    best = result.best()
    assert (best.config, best.fastest) == (DEEP, DEEP)
    assert dropped in result.rounds


def test_a_round_that_was_cut_short_does_not_decide() -> None:
    other = AioConfig(queue_depth=2)
    whole = {CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3), other: (1.25, 1.25)}
    result = result_of([whole, whole, {CONTROL: (1.0, 1.0), other: (1.6, 1.6)}])
    result.interrupted = True
    best = result.best()
    assert (best.config, best.fastest, best.tied) == (DEEP, DEEP, (DEEP,))
    assert best.ratio == pytest.approx((1.3, 1.3, 1.3, 2))


def test_before_a_round_of_the_finals_is_finished_the_search_decides() -> None:
    result = result_of([{CONTROL: (1.0, 1.0), DEEP: (1.3, 1.3)}], "descent")
    result.measured += [Measured("finals", 1, sample(CONTROL, "read", 1.0))]
    result.interrupted = True
    assert result.best().config == DEEP
    assert result.mixed_rate(DEEP) == pytest.approx(1.3e9)


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
    assert len(better.to_frame(slices=True)) == 16


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
        ('{"format": "dsexplore sweep", "version": 1}', "is a damaged sweep: KeyError"),
    ],
)
def test_files_that_are_no_sweeps(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        SweepResult.load(path)
    assert str(path) in str(caught.value)


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


def test_text(better: SweepResult) -> None:
    lines = better.lines()
    assert lines[0] == "ext4 on /dev/nvme0n1 (disk, direct I/O); tensor mode by linux-aio"
    assert "read: median 3.08 GB/s (2.86 GiB/s), 3.00–3.15 GB/s, n 4" in lines
    assert "write with fsync: median 0.79 GB/s (0.73 GiB/s)" in lines
    assert not [line for line in lines if line.startswith("read with fsync")]
    latency = "latency of a request: p50 1.00, p95 2.00, p99 3.00, longest 9.00 ms; 10.0 ms of CPU per GiB"
    assert {f"read {latency}", f"write {latency}"} <= set(lines)
    assert lines[-1] == "5 GiB written (overwrite) in 42 s"
    assert str(better).splitlines() == [
        *lines,
        "ring, read: median 3.20 GB/s (2.98 GiB/s), n 3; 1 MiB × depth 32 × 1 thread, block submit, overlap; ring",
        "io_uring did not run: forbidden",
    ]


def test_a_result_without_a_complete_round() -> None:
    result = result_of([{DEEP: (1.0, 1.0)}])
    result.interrupted = True
    assert result.lines()[1:] == ["Interrupted: the results so far.", "No setting was compared with the default yet."]
    with pytest.raises(UsageError, match="run it for longer"):
        result.best()
