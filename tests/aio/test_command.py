"""``dsexplore aio``: what is printed, saved and refused."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsexplore._internal.aio import command
from dsexplore._internal.aio.sweeps import sweeping
from dsexplore._internal.aio.sweeps.result_text import what
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.errors import UsageError, page_of
from dsexplore._internal.units import format_rate
from dsexplore.aio import AioConfig, SweepResult
from tests.aio.sweeps.results import result_of

ADDRESS = f"\n{page_of(UsageError)}\n"
"""Text after the message of an error."""

pytestmark = pytest.mark.usefixtures("open_files")


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_the_command_prints_the_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path), "--size", "32MiB", "--seconds", "1", "--save", str(tmp_path / "r.json")) == 0
    text = capsys.readouterr().out
    assert "direct I/O); tensor mode by" in text or "page cache); tensor mode by" in text
    assert AioConfig.from_dict(json.loads(text[text.index("{") :]))
    assert SweepResult.load(tmp_path / "r.json").measured


def test_the_command_prints_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path), "--size", "32MiB", "--seconds", "1", "--json") == 0
    captured = capsys.readouterr()
    loaded = json.loads(captured.out)
    assert captured.err == ""
    assert AioConfig.from_dict(loaded["aio"])
    assert SweepResult.from_json(loaded).measured


def test_the_command_tells_what_went_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path / "none"), "--seconds", "1") == 1
    assert capsys.readouterr().err.startswith("dsexplore aio: ")
    assert run_command(str(tmp_path), "--size", "1k") == 1
    assert "too small" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_the_command_checks_first_where_results_go(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "sweep", pytest.fail)
    assert run_command(str(tmp_path), option, str(tmp_path / "none" / "result")) == 1
    told = capsys.readouterr().err
    assert told == f"dsexplore aio: {option} {tmp_path}/none/result: there is no folder {tmp_path}/none{ADDRESS}"
    assert run_command(str(tmp_path), option, str(tmp_path)) == 1
    told = capsys.readouterr().err
    assert told == f"dsexplore aio: {option} {tmp_path} is a folder: give the name of a file in it{ADDRESS}"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run_command(str(tmp_path), option, str(tmp_path / "result")) == 1
    told = capsys.readouterr().err
    assert told == f"dsexplore aio: {option} {tmp_path}/result: nothing may be written to {tmp_path}{ADDRESS}"


def test_the_command_prints_what_it_cannot_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "r.json")

    monkeypatch.setattr(SweepResult, "save", full)
    words = (str(tmp_path), "--size", "16MiB", "--seconds", "0.3", "--save", str(tmp_path / "r.json"))
    assert run_command(*words, "--html", str(tmp_path / "r.html")) == 1
    captured = capsys.readouterr()
    assert '"block_size"' in captured.out
    assert captured.err.splitlines()[-1] == "dsexplore aio: [Errno 28] No space left on device: 'r.json'"
    assert (tmp_path / "r.html").exists()


@pytest.mark.parametrize("folders", [1, 2])
def test_a_reader_that_ends_early_loses_nothing(tmp_path: Path, folders: int) -> None:
    """Measure and save each path though nobody reads the output, as with ``… --save FILE | head -0``."""
    program = "import sys; from dsexplore._internal.cli import main; sys.exit(main())"
    paths = [str(tmp_path)] * folders
    words = ["aio", *paths, "--size", "16MiB", "--seconds", "0.3", "--save", str(tmp_path / "r.json")]
    command = [sys.executable, "-c", program, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        said = (
            f"dsexplore aio: this takes 16 MiB in {tmp_path}, and overwrites that again and again, up to 64 GiB in all "
            "(--max-written)\n"
        )
        assert process.stderr.read() == said * folders
    assert process.wait(240) == 0
    for name in ["r.json"] if folders == 1 else ["r-1.json", "r-2.json"]:
        assert SweepResult.load(tmp_path / name).measured


ONE = ("--block-size", "256KiB", "--queue-depth", "4", "--thread-count", "1", "--single-submit", "false",
       "--overlap-events", "true")  # fmt: skip
FAST = ("--size", "16MiB", "--seconds", "0.3")
SETTING = AioConfig(block_size=256 << 10, queue_depth=4)


def settings_of(result: SweepResult) -> set[AioConfig]:
    return {m.sample.config for m in result.measured}


def test_one_given_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the result of a setting, whether it is recommended or not."""
    assert run_command(str(tmp_path), *FAST, *ONE, "--save", str(tmp_path / "r.json")) == 0
    result = SweepResult.load(tmp_path / "r.json")
    assert settings_of(result) == {SETTING, AioConfig()}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("the default"))
    other = SETTING if result.best().config == AioConfig() else AioConfig()
    read, write = (
        format_rate(
            median([m.sample.rate for m in result.deciding if (m.sample.config, m.sample.operation) == (other, op)])
        )
        for op in ("read", "write")
    )
    assert line.startswith(f"{other}: read {read}, write {write}; ")


def test_the_setting_of_a_ds_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ds_config.json").write_text(json.dumps({"train_batch_size": 8, **SETTING.to_ds_config()}))
    words = (str(tmp_path), *FAST, "--config", str(tmp_path / "ds_config.json"))
    assert run_command(*words, "--save", str(tmp_path / "r.json")) == 0
    assert settings_of(SweepResult.load(tmp_path / "r.json")) == {SETTING, AioConfig()}
    assert run_command(*words, "--queue-depth", "2") == 1
    assert "--config names one setting already: leave --queue-depth out" in capsys.readouterr().err
    (tmp_path / "without.json").write_text(json.dumps({"train_batch_size": 8}))
    assert run_command(str(tmp_path), *FAST, "--config", str(tmp_path / "without.json")) == 1
    assert f'{tmp_path}/without.json has no "aio" block: give a ds_config that has one' in capsys.readouterr().err


@pytest.mark.usefixtures("short_slices")
def test_axes_to_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--queue-depth", "2", "4", "--thread-count", "1", "--block-size", "256KiB", "--single-submit", "true")
    limit = ("--max-written", "512MiB")
    ended = run_command(str(tmp_path), *FAST, *limit, *words, "--grid", "--save", str(tmp_path / "r.json"))
    assert ended == 0, capsys.readouterr().err
    result = SweepResult.load(tmp_path / "r.json")
    assert result.bytes_written <= 512 << 20
    others = settings_of(result) - {AioConfig()}
    assert {(c.queue_depth, c.overlap_events) for c in others} == {(2, True), (2, False), (4, True), (4, False)}
    assert {(c.block_size, c.thread_count, c.single_submit) for c in others} == {(256 << 10, 1, True)}


def test_several_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    assert run_command(str(first), str(second), *FAST, *ONE, "--save", str(tmp_path / "r.json")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{first}:", f"{second}:"]
    results = [SweepResult.load(tmp_path / f"r-{number}.json") for number in (1, 2)]
    assert [result.disk.path for result in results] == [str(first), str(second)]
    ranked = sorted(results, key=lambda result: -result.best().rate)
    assert lines[-1].startswith(f"Fastest first: {ranked[0].disk.path} ")
    assert f"; {ranked[1].disk.path} " in lines[-1]
    assert run_command(str(first), str(second), *FAST, *ONE, "--json") == 0
    assert [kept["disk"]["path"] for kept in json.loads(capsys.readouterr().out)] == [str(first), str(second)]


@pytest.mark.parametrize(
    ("rates", "rounds", "doubt"),
    [((3.0, 1.0), 4, ""), ((3.0, 2.9), 4, " (not surely slower)"), ((3.0, 1.0), 1, " (not surely slower)")],
)
def test_a_directory_is_called_slower_where_that_is_sure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rates: tuple[float, float],
    rounds: int,
    doubt: str,
) -> None:
    """Mark a tie between two directories of one disk that differ by 3 %."""
    given = {}
    for name, rate in zip("ab", rates, strict=True):
        (tmp_path / name).mkdir()
        result = result_of([{AioConfig(): (rate, rate)}] * rounds)
        given[str(tmp_path / name)] = replace(result, disk=replace(result.disk, path=name))
    monkeypatch.setattr(sweeping, "sweep", lambda path, *_, **__: given[path])
    assert run_command(str(tmp_path / "b"), str(tmp_path / "a")) == 0
    first, second = (format_rate(rate * 1e9) for rate in rates)
    assert capsys.readouterr().out.splitlines()[-1] == f"Fastest first: a {first}; b {second}{doubt}"


def test_read_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "large").write_bytes(os.urandom(9 << 20))
    (tmp_path / "small").write_bytes(bytes(100))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert run_command(str(tmp_path), *FAST, *ONE, "--read-only") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"dsexplore aio: this reads {tmp_path / 'large'}, and writes nothing (--read-only)"
    ]
    assert run_command(str(tmp_path), *FAST, *ONE, "--read-only", "--json") == 0
    captured = capsys.readouterr()
    loaded = json.loads(captured.out)
    assert (loaded["disk"]["path"], loaded["bytes_written"]) == (str(tmp_path / "large"), 0)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    (tmp_path / "large").unlink()
    assert run_command(str(tmp_path), "--read-only") == 1
    assert f"--read-only {tmp_path}: no file in it has 8 MiB or more to read" in capsys.readouterr().err


def test_how_much_is_written_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **named: object) -> None:
        raise OSError(named["max_written"])

    monkeypatch.setattr(sweeping, "sweep", refuse)
    for words, said in (
        ((), "up to 64 GiB in all"),
        (("--max-written", "2GiB"), "up to 2 GiB in all"),
        (("--max-written", "none"), "without limit"),
    ):
        assert run_command(str(tmp_path), *words) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert first == (
            f"dsexplore aio: this takes 1 GiB in {tmp_path}, and overwrites that again and again, {said} "
            "(--max-written)"
        )
        assert second == f"dsexplore aio: {None if said == 'without limit' else words[-1] if words else '64GiB'}"
    for wrong in (("--max-written", "much"), ("--max-written", "1MiB"), ("--size", "1MiB"), ("--queue-depth", "0"),
                  ("--queue-depth", "1000000")):  # fmt: skip
        assert run_command(str(tmp_path), *wrong) == 1
        assert "this writes" not in capsys.readouterr().err
    for words in (("--read-share", "1"), ("--json",)):
        run_command(str(tmp_path), *words)
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
def test_no_time_to_spend(tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert run_command(str(tmp_path), "--seconds", seconds) == 1
    told = capsys.readouterr().err
    remedy = "give a positive number, or --grid to try every setting"
    assert told == f"dsexplore aio: --seconds {seconds} is not a time to spend: {remedy}{ADDRESS}"


@pytest.mark.processes
def test_several_processes(tmp_path: Path) -> None:
    words = ("--processes", "2", "--tensor", "8MiB", "16MiB", "--save", str(tmp_path / "r.json"))
    assert run_command(str(tmp_path), *FAST, *ONE, *words) == 0
    result = SweepResult.load(tmp_path / "r.json")
    assert (result.conditions.processes, result.conditions.transfers) == (2, (8 << 20, 16 << 20))
    assert what(result).endswith(", 2 processes at once")


def test_the_job_file_of_fio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path), *FAST, *ONE, "--fio-job") == 0
    text = capsys.readouterr().out
    job = text[text.index("[global]") :]
    config = AioConfig.from_dict(json.loads(text[text.index("{") : text.index("[global]")]))
    assert f"bs={config.block_size}\niodepth={config.queue_depth}\n" in job
    if shutil.which("fio") is None:
        pytest.skip("fio is not on PATH")
    (tmp_path / "job.fio").write_text(job.replace("runtime=10000ms", "runtime=50ms"))
    words = ["fio", "--output-format=json", str(tmp_path / "job.fio")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert [job["jobname"] for job in jobs] == ["read", "write"]
    assert jobs[0]["read"]["io_bytes"] > 0
    assert jobs[1]["write"]["io_bytes"] > 0


def test_two_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    for name in names:
        assert run_command(str(tmp_path), *FAST, *ONE, "--save", name) == 0
    capsys.readouterr()
    assert run_command("--compare", *names) == 0
    lines = capsys.readouterr().out.splitlines()
    one, other = map(SweepResult.load, names)
    rows = one.compare_rows(other)
    assert len(rows) == 4
    assert len(lines) == 2 + 1 + 4 + 2
    assert lines[0].startswith(f"{names[0]}: {what(one)}, ")
    for row, line in zip(rows, lines[3:7], strict=True):
        assert line.startswith(row["operation"])
        assert line.split()[-3:] == [f"{row['gb_s']:.2f}", f"{row['other_gb_s']:.2f}", f"{row['ratio']:.3f}"]
    assert lines[-1] == f"{names[1]}: {other.best().verdict()}"
    sized = replace(other, conditions=replace(other.conditions, size=8 << 30))
    sized.save(tmp_path / "b.json")
    assert run_command("--compare", *names) == 0
    assert "Files hold 16 MiB and 8 GiB." in capsys.readouterr().out.splitlines()
    assert run_command("--compare", names[0], str(tmp_path / "none")) == 1
    assert "none" in capsys.readouterr().err


def test_paths_are_looked_for_before_any_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path), str(tmp_path / "none"), *FAST) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "", f"dsexplore aio: [Errno 2] No such file or directory: '{tmp_path}/none'\n",
    )  # fmt: skip


def test_a_path_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command() == 1
    assert "give a PATH to measure, or --compare with two saved results" in capsys.readouterr().err
