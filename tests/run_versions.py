"""Run the tests on several versions of torch, each in an environment of its own, and print a table.

``make versions TORCH="2.9.1 2.15.0"`` does this. Slow tests that depend little on torch are omitted: those of the
browser, the notebooks, other people's frameworks and the packaging, which `make test` and `make frameworks` run; and,
unless ``--all`` is given, those that `is_omitted` selects. The rows of a document need ``--all``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("tests/browser", "tests/frameworks", "tests/test_packaging.py")
AFTER_TORCH = ("aio", "analysis", "cost", "trace", "views")
"""Rooms that process recorded data, or use a disk: most of their tests have the same result on each torch."""
OF_SOURCES = ("test_docstrings.py", "test_floors.py", "test_mirror.py", "test_run_versions.py")
"""Tests that only read sources."""
SHOWN_BESIDE = {
    "aio/test_any_calls.py": "bytes of a tensor on a disk: test_handle.py",
    "aio/test_bytes.py": "bytes of a tensor on a disk: test_handle.py",
    "analysis/hangs/test_earlier_blocks.py": "hangs of real ranks: test_saved_hangs.py",
    "analysis/test_late_ranks.py": "times of real ranks: worlds/real/test_profiled_ranks.py",
    "cost/meshes/test_compared_choices.py": "traces of a model on each mesh: test_compare_meshes.py",
    "lessons/test_lesson.py": "simulated ranks: worlds/simulated/",
    "test_magics.py": "cells that are traced: test_real_cells.py, test_compare_magic.py",
    "views/explorer/test_one_selection.py": "filters of a trace: trace/test_select.py",
    "worlds/real/test_engine_cluster.py": "cells on real ranks: test_real_cells.py",
}
"""{slow test file: its part that depends on torch, and the faster file that tests this part on each version}."""
ASKS_TORCH = re.compile(
    r"""\b(?:import|from)\ torch\b        # uses torch, be it in the text of a program
    | \(\s*"torch\.                     # importorskip("torch.…")
    | \btorch_at_least\b | \btorch_internals\b
    | \brank_server\b | \brun_ranks\b   # starts real ranks""",
    re.MULTILINE | re.VERBOSE,
)
OF_TORCH = ("torch==", "setuptools==")
"""Constraints that a version of torch replaces: itself, and setuptools, of which 2.11 refuses a newer version."""
TABLE = re.compile(r"<!-- table -->.*<!-- end of table -->", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """Result of the tests on one version of torch.

    Attributes:
        torch: Version that was installed.
        python: Minor version of Python.
        passed: Number of tests that passed.
        failed: Number of tests that failed, including errors in fixtures.
        skipped: Number of tests that were skipped, by reason.
        status: Exit status of pytest.
    """

    torch: str
    python: str
    passed: int
    failed: int
    skipped: Counter[str]
    status: int

    def row(self) -> str:
        """Return the row of the table."""
        reasons = "; ".join(f"{count} × {reason}" for reason, count in self.skipped.most_common()) or "none"
        return (
            f"| {self.torch} | {self.python} | {self.passed:,} | {self.failed} | {self.skipped.total()} | {reasons} |"
        )


def constraints(torch: str) -> str:
    """Return the constraints of this release for another version of torch."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(OF_TORCH)]
    return "\n".join([*kept, f"torch=={torch}"]) + "\n"


def environment(torch: str, python: str, folder: Path) -> Path:
    """Return the Python of an environment with a version of torch; the environment is made if it does not exist."""
    home = folder / f"torch-{torch}-{Path(python).name}"
    interpreter, made = home / "bin" / "python", home / ".made"
    if not made.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
        pins = home / "constraints.txt"
        pins.write_text(constraints(torch), encoding="utf-8")
        install = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([*install, "--constraint", str(pins), "--editable", f"{ROOT}[test,ranks]"], check=True)
        made.touch()
    return interpreter


def is_omitted(path: Path) -> bool:
    """Return True for a test file that has the same result on each torch, or whose part that depends on torch a faster
    file tests.

    These are the files of the rooms `AFTER_TORCH` that neither use torch nor start ranks, `OF_SOURCES`, and the files
    of `SHOWN_BESIDE`.
    """
    file = path.relative_to(ROOT / "tests")
    if file.as_posix() in SHOWN_BESIDE or file.as_posix() in OF_SOURCES:
        return True
    return file.parts[0] in AFTER_TORCH and not ASKS_TORCH.search(path.read_text(encoding="utf-8"))


def left_out(everything: bool) -> list[str]:
    """Return the paths of tests that are not run, from the root of the repository."""
    files = [] if everything else filter(is_omitted, (ROOT / "tests").rglob("test_*.py"))
    return [*LEFT_OUT, *sorted(str(path.relative_to(ROOT)) for path in files)]


def run(interpreter: Path, torch: str, arguments: list[str], again: bool = False, everything: bool = False) -> Result:
    """Run the tests in an environment, and return the result.

    Args:
        interpreter: Python of the environment.
        torch: Version of torch that it should have.
        arguments: Tests and options of pytest; empty for all tests.
        again: Whether to run the files in which a test failed last time, in place of the tests in `arguments`, and
            return the last result with theirs replaced.
        everything: Whether to run files that `is_omitted` selects too; tests in `arguments` are run anyway.
    """
    everything = everything or again or bool(arguments)
    kept = interpreter.parents[1] / "report.xml"
    report = kept.with_name("again.xml") if again else kept
    report.unlink(missing_ok=True)
    if again:
        arguments = failed_files(kept)
    command = [str(interpreter), "-m", "pytest", "-m", "not browser", f"--junit-xml={report}", "-q"]
    command += [f"--ignore={path}" for path in left_out(everything)]
    command += ["--numprocesses", os.environ.get("PROCESSES", "3"), "--dist", "loadfile", *(arguments or ["tests"])]
    finished = subprocess.run(command, cwd=ROOT, env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}, check=False)
    version = "import sys, torch; print(torch.__version__.split('+')[0], '%d.%d' % sys.version_info[:2])"
    printed = subprocess.run([str(interpreter), "-c", version], check=True, capture_output=True, text=True).stdout
    installed, python = printed.split()
    assert installed == torch, f"torch {installed} was installed, not {torch}"
    if again:
        merge_reports(kept, report)
    return read_report(kept, torch, python, finished.returncode)


def test_file(case: ElementTree.Element) -> str:
    """Return the path of the file that a test of a report is in, from the root of the repository."""
    parts = case.get("classname", "").split(".")
    while parts and not (ROOT / Path(*parts)).with_suffix(".py").is_file():
        parts.pop()  # the name of a class
    return f"{'/'.join(parts)}.py" if parts else ""


def failed_files(report: Path) -> list[str]:
    """Return the files of a report in which a test failed, sorted."""
    cases = ElementTree.parse(report).iter("testcase")
    return sorted({test_file(case) for case in cases if {"failure", "error"} & {child.tag for child in case}})


def merge_reports(kept: Path, newer: Path) -> None:
    """Replace the results in the report `kept` of all files that the report `newer` has."""
    tree, cases = ElementTree.parse(kept), list(ElementTree.parse(newer).iter("testcase"))
    replaced = {test_file(case) for case in cases}
    for suite in tree.iter("testsuite"):
        for case in list(suite.iter("testcase")):
            if test_file(case) in replaced:
                suite.remove(case)
    next(tree.iter("testsuite")).extend(cases)
    tree.write(kept)


def read_report(report: Path, torch: str, python: str, status: int) -> Result:
    """Return the result from the JUnit XML that pytest wrote."""
    passed, failed, skipped = 0, 0, Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        if {"failure", "error"} & kinds.keys():
            failed += 1
        elif "skipped" in kinds:
            skipped[kinds["skipped"].get("message") or "no reason given"] += 1
        else:
            passed += 1
    return Result(torch, python, passed, failed, skipped, status)


def table(rows: list[str]) -> str:
    """Return the table as Markdown."""
    return "\n".join(
        ["| torch | Python | passed | failed | skipped | why skipped |", "|---|---|---|---|---|---|", *rows]
    )


def rewritten(text: str, rows: list[str]) -> str:
    """Return a document with these rows in its table; rows of other versions of torch and Python stay."""
    kept = re.findall(r"^\| \d.*\|$", "".join(TABLE.findall(text)), re.MULTILINE)
    by_version = {tuple(cell.strip() for cell in row.split("|")[1:3]): row for row in [*kept, *rows]}
    ordered = sorted(by_version, key=lambda versions: [int(part) for each in versions for part in each.split(".")])
    made = table([by_version[versions] for versions in ordered])
    return TABLE.sub(lambda _: f"<!-- table -->\n{made}\n<!-- end of table -->", text)


def main(argv: list[str] | None = None) -> int:
    """Run the tests on all versions that the command line names, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="+", required=True, help="versions of torch: 2.9.1 2.15.0")
    parser.add_argument("--python", default=sys.executable, help="the Python that the environments are made with")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "versions", help="where the environments are kept"
    )
    parser.add_argument("--write", type=Path, help="a document whose table gets these rows")
    parser.add_argument(
        "--again",
        action="store_true",
        help="run the files that had failures in the last run, and count the rest as then",
    )
    parser.add_argument("--all", action="store_true", help="run also the tests that would say the same on each torch")
    parser.add_argument("tests", nargs="*", help="tests to run, and pytest's options after --; all where left out")
    options = parser.parse_args(argv)
    if options.write and not options.all:
        parser.error("--write needs --all: the rows of a document count all tests")
    results = []
    for torch in options.torch:
        interpreter = environment(torch, options.python, options.folder)
        results.append(run(interpreter, torch, options.tests, options.again, options.all))
    rows = [result.row() for result in results]
    if options.write:
        options.write.write_text(rewritten(options.write.read_text(encoding="utf-8"), rows), encoding="utf-8")
    print(table(rows))
    for result in results:
        print(f"torch {result.torch}: {result.passed} passed, {result.failed} failed, {result.skipped.total()} skipped")
    if not (options.all or options.again or options.tests):
        print(f"{len(left_out(False)) - len(LEFT_OUT)} test files that depend little on torch were left out: --all")
    return int(any(result.status for result in results))


if __name__ == "__main__":
    sys.exit(main())
