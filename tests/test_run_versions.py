"""`run_versions.py` makes the table of tested versions from pytest's reports.

Modules: none of the package.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("run_versions.py")
spec = importlib.util.spec_from_file_location("run_versions", PATH)
assert spec is not None
assert spec.loader is not None
run_versions = importlib.util.module_from_spec(spec)
sys.modules["run_versions"] = run_versions
spec.loader.exec_module(run_versions)

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message="no"/></testcase><testcase name="c"><error/></testcase>
<testcase name="d"><skipped message="torch 2.9 has no graphs"/></testcase>
<testcase name="e"><skipped message="torch 2.9 has no graphs"/></testcase><testcase name="f"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_kind(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    result = run_versions.read_report(report, "2.9.1", "3.11", 1)
    assert (result.passed, result.failed, result.skipped.total()) == (1, 2, 3)
    assert result.row() == "| 2.9.1 | 3.11 | 1 | 2 | 3 | 2 × torch 2.9 has no graphs; 1 × no reason given |"


def test_the_table_is_written_into_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "versions.md"
    document.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    monkeypatch.setattr(run_versions, "environment", lambda torch, python, folder: Path(sys.executable))
    monkeypatch.setattr(
        run_versions,
        "run",
        lambda interpreter, torch, tests, again, everything: run_versions.Result(torch, "3.11", 1234, 0, Counter(), 0),
    )
    assert run_versions.main(["--torch", "2.9.1", "2.15.0", "--all", "--write", str(document)]) == 0
    rows = [line for line in document.read_text().splitlines() if line.startswith("| 2.")]
    assert rows == ["| 2.9.1 | 3.11 | 1,234 | 0 | 0 | none |", "| 2.15.0 | 3.11 | 1,234 | 0 | 0 | none |"]
    assert document.read_text().startswith("before\n")
    assert document.read_text().endswith("after\n")
    assert "torch 2.9.1: 1234 passed, 0 failed, 0 skipped" in capsys.readouterr().out


def test_only_a_run_of_all_tests_is_written_into_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_versions.main(["--torch", "2.15.0", "--write", str(tmp_path / "versions.md")])
    assert "--write needs --all" in capsys.readouterr().err


TESTS = PATH.parent
USES_TORCH = (
    "analysis/test_advice.py",
    "analysis/hangs/test_torchs_own_cases.py",
    "analysis/hangs/test_saved_hangs.py",
    "aio/test_handle.py",
    "cost/test_traced_rank.py",
    "trace/importers/test_profiles.py",
)
OTHER_ROOMS = ("test_imports.py", "test_public_names.py", "worlds/scripts/test_distinct_ranks.py")


@pytest.mark.parametrize("path", USES_TORCH + OTHER_ROOMS)
def test_what_asks_torch_runs_on_each_version(path: str) -> None:
    assert not run_versions.is_omitted(TESTS / path)


def test_what_a_version_of_torch_skips_is_run_on_each() -> None:
    """A file that is skipped on some version shows that it depends on torch: none may be left out."""
    marked = [
        path
        for path in TESTS.rglob("test_*.py")
        if re.search(r"needs?_torch|torch_at_least\(|torch\.__version__|importorskip\(\s*\"torch", path.read_text())
    ]
    assert len(marked) > 20
    assert [path for path in marked if path != Path(__file__) and run_versions.is_omitted(path)] == []


def test_files_that_are_left_out_by_name_are_there() -> None:
    assert [file for file in run_versions.SHOWN_BESIDE if not (TESTS / file).is_file()] == []


def test_rooms_after_torch_leave_out_nothing_where_all_is_asked() -> None:
    some = set(run_versions.left_out(False))
    assert {"tests/views/trace/test_trace_view.py", "tests/aio/sweeps/test_statistics.py"} <= some
    assert run_versions.left_out(True) == list(run_versions.LEFT_OUT)


def test_files_that_failed_are_run_again_and_replace_what_the_report_said(tmp_path: Path) -> None:
    first, second = tmp_path / "report.xml", tmp_path / "again.xml"
    head = "<testsuites><testsuite>"
    foot = "</testsuite></testsuites>"
    first.write_text(
        f'{head}<testcase classname="tests.test_units.TestBytes" name="a"><failure/></testcase>'
        '<testcase classname="tests.test_units" name="gone"/><testcase classname="tests.test_floors" name="b"/>'
        f'<testcase classname="tests.trace.test_files" name="c"><error/></testcase>{foot}'
    )
    second.write_text(f'{head}<testcase classname="tests.test_units.TestBytes" name="a"/>{foot}')
    assert run_versions.failed_files(first) == ["tests/test_units.py", "tests/trace/test_files.py"]
    run_versions.merge_reports(first, second)
    result = run_versions.read_report(first, "2.9.1", "3.11", 1)
    assert (result.passed, result.failed) == (2, 1)
    assert run_versions.failed_files(first) == ["tests/trace/test_files.py"]


def test_rows_of_versions_that_were_not_run_stay() -> None:
    old = "| torch | … |\n|---|---|\n| 2.15.0 | 3.11 | old |\n| 2.9.1 | 3.11 | kept |"
    text = f"<!-- table -->\n{old}\n<!-- end of table -->\n"
    lines = run_versions.rewritten(text, ["| 2.15.0 | 3.11 | new |", "| 2.15.0 | 3.9 | new |"]).splitlines()
    assert lines[3:6] == ["| 2.9.1 | 3.11 | kept |", "| 2.15.0 | 3.9 | new |", "| 2.15.0 | 3.11 | new |"]


def test_constraints_differ_in_torch_and_what_it_chooses() -> None:
    ours = set((PATH.parents[1] / "constraints.txt").read_text().splitlines())
    assert set(run_versions.constraints("2.9.1").splitlines()) ^ ours == {
        "torch==2.9.1",
        "torch==2.13.0",
        "setuptools==84.2.1",
    }
