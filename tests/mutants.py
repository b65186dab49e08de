"""Change the package in one place at a time, and list the changes that no test notices.

    make mutants ARGS="--count 200 --seed 1 --rooms trace capture comm aio sharding worlds"

A mutant is the package with one small change: an inverted comparison, ``and`` for ``or``, an added or removed ``not``,
a number that is off by one, ``+`` for ``-``, ``break`` for ``continue``, a loop that never runs, ``return None``.
Mutants are drawn by the seed over all places of the chosen rooms; annotations, type aliases, ``if TYPE_CHECKING``
blocks, the options of dataclasses and the ``strict`` of ``zip`` are not changed. For each mutant, pytest runs the test
files nearest to the changed module first, then the others of its room, until one fails; the result names the failed
test. A mutant that no test notices shows that a test is missing, or that the code does nothing.

The changes are made in copies of the working tree, one per process, which are removed in the end. Results are stored in
``build/mutants/results.jsonl`` under the content of the changed file, so that an interrupted run can be continued.

Cosmic-ray makes the changes, because it changes the text of one file. ``make mutants`` installs it into an environment
of its own. Mutmut does not work here: it rewrites each function into a trampoline with all its mutants, which the
recorder would see on the Python stack; it makes all mutants of a folder, and not some that are drawn; and it forks a
process that has loaded torch, so that most mutants run into its time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.drawn_mutants import ROOT, Mutant, draw, files_of

RESULTS = ROOT / "build" / "mutants" / "results.jsonl"


LIMIT = 960.0
"""Seconds for the tests of a room, of which the longest take a third."""
MEMORY = 6 << 30
"""Bytes that each process of a test run may ask for: a changed loop or size can ask for all there are."""


class Copies:
    """Copies of the working tree, in which tests run on changed files."""

    def __init__(self, folder: Path, python: Path, number: int) -> None:
        self._python = python
        self._free: queue.Queue[Path] = queue.Queue()
        self._running: dict[Path, subprocess.Popen[str]] = {}
        """{copy: pytest that runs in it}."""
        self._lock = threading.Lock()
        self._stopped = False
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for index in range(number):
            copy = folder / f"copy-{index}"
            for name in filter(None, listed):
                if (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)
            for command in (["git", "init", "-q"], ["git", "add", "-A"]):  # some tests ask git which files there are
                subprocess.run(command, cwd=copy, check=True)
            self._free.put(copy)

    def test(self, tests: Sequence[str], changed: Mutant | None = None) -> tuple[str, str]:
        """Run tests in a copy with a changed file, or in an unchanged one, until one fails.

        Returns:
            ``passed``, ``failed``, ``time limit`` or ``stopped``, and the end of what pytest printed.
        """
        copy = self._free.get()
        try:
            if changed is not None:
                (copy / changed.path).write_text(changed.code(), encoding="utf-8")
            return self._pytest(copy, [*tests, "-x"])
        finally:
            if changed is not None:
                (copy / changed.path).write_text(changed.original, encoding="utf-8")
            self._free.put(copy)

    def _pytest(self, copy: Path, arguments: Sequence[str]) -> tuple[str, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        environment["PATH"] = f"{self._python.parent}{os.pathsep}{environment['PATH']}"
        command = [
            str(self._python),
            "-m",
            "pytest",
            "-q",
            "--tb=line",
            "-m",
            "not browser",
            "--timeout",
            "120",
            *arguments,
        ]
        with tempfile.TemporaryFile("w+") as output:
            with self._lock:
                if self._stopped:
                    return "stopped", ""
                run = subprocess.Popen(
                    command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, text=True, start_new_session=True,
                )  # fmt: skip
                resource.prlimit(run.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
                self._running[copy] = run
            try:
                code = run.wait(LIMIT)
                has_passed = code in (0, 5)  # 5 means that no test was selected
                outcome = "passed" if has_passed else "failed"
                if self._stopped:
                    outcome = "stopped"
            except subprocess.TimeoutExpired:
                outcome = "time limit"
            finally:
                end(run, copy)
                self._running.pop(copy, None)
            output.seek(0)
            return outcome, output.read()[-20000:]

    def stop(self) -> None:
        """End the tests that run, and start no others."""
        with self._lock:
            self._stopped = True
            for copy, run in list(self._running.items()):
                end(run, copy)


def end(run: subprocess.Popen[str], copy: Path) -> None:
    """End a test run in a copy, and all processes that its tests have started, such as engines of a cluster."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    while left := processes_of(copy):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes_of(copy: Path) -> list[int]:
    """Return the processes that inherited the environment of a test run in a copy."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if f"PYTHONPATH={copy}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def kept() -> dict[str, dict[str, Any]]:
    """Return {key of a mutant: its result} of earlier runs."""
    if not RESULTS.exists():
        return {}
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return {result["key"]: result for result in map(json.loads, lines)}


def keep(mutant: Mutant, outcome: str, seconds: float, noticed_by: Sequence[str]) -> dict[str, Any]:
    """Append a result to the file of results, with the tests that failed, and return it."""
    where = f"{mutant.path}:{mutant.line}"
    result = {
        "key": mutant.key,
        "where": where,
        "outcome": outcome,
        "seconds": round(seconds, 1),
        "noticed by": list(noticed_by),
        "diff": mutant.diff(),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    return result


class Unchanged:
    """The tests that fail on the unchanged package too, such as one that needs more than `MEMORY`.

    A test that failed on a mutant is run there once, to find out.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._lock = threading.Lock()
        self._fails: dict[str, bool] = {}

    @property
    def failing(self) -> list[str]:
        """Failing tests that are known so far."""
        with self._lock:
            return [test for test, fails in self._fails.items() if fails]

    def fails(self, test: str) -> bool:
        """Return whether a test fails on the unchanged package; it runs there once."""
        with self._lock:
            known = self._fails.get(test)
        if known is None:
            outcome, text = self._copies.test([test])
            if outcome == "stopped":
                return True  # the mutant's next run is stopped too, so that no result is kept
            known = outcome == "time limit" or test in FAILED_TEST.findall(text)
            with self._lock:
                self._fails[test] = known
            if known:
                print(f"          left out, since it fails on the unchanged package: {test}", flush=True)
        return known


FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
"""A line of pytest's summary."""


def each(work: Callable[[Any], None], items: Iterable[Any], copies: Copies, processes: int) -> None:
    """Call a function for every item in several threads; an error or Ctrl-C ends the running tests."""
    with ThreadPoolExecutor(processes) as pool:
        try:
            list(pool.map(work, items))
        except BaseException:
            copies.stop()
            raise


def run_all(mutants: Sequence[Mutant], folder: Path, given: argparse.Namespace) -> None:
    """Test each mutant in copies of the tree, and print and store each result when it is known."""
    copies = Copies(folder, given.python.absolute(), given.processes)
    unchanged = Unchanged(copies)
    tests = {mutant.path: files_of(mutant.path, given.quick) for mutant in mutants}

    def one(mutant: Mutant) -> None:
        began = time.monotonic()
        outcome, noticed_by = tested(mutant, tests[mutant.path], copies, unchanged)
        if outcome != "stopped":
            result = keep(mutant, outcome, time.monotonic() - began, noticed_by)
            where = f"{mutant.path}:{mutant.line}  {mutant.operator}"
            print(f"{result['seconds']:6.1f} s  {SHOWN[outcome]:12}  {where}", flush=True)

    each(one, mutants, copies, given.processes)


def tested(mutant: Mutant, tests: Sequence[str], copies: Copies, unchanged: Unchanged) -> tuple[str, list[str]]:
    """Return the outcome of a room's tests on a mutant, without tests that fail anyway, and the tests that failed."""
    while True:
        left_out = unchanged.failing
        outcome, text = copies.test([*tests, *(f"--deselect={test}" for test in left_out)], mutant)
        failed = FAILED_TEST.findall(text)
        if outcome != "failed" or not any(unchanged.fails(test) for test in failed if test not in left_out):
            return outcome, failed


SHOWN = {"failed": "noticed", "time limit": "time limit", "passed": "NOT NOTICED"}


def report(mutants: Sequence[Mutant], results: dict[str, dict[str, Any]]) -> str:
    """Return a table by room, and each mutant that no test noticed with its change."""
    rows: dict[str, dict[str, int]] = {}
    for mutant in mutants:
        room = Path(mutant.path).with_suffix("").parts[1]
        row = rows.setdefault(room, dict.fromkeys(SHOWN, 0))
        if mutant.key in results:
            row[results[mutant.key]["outcome"]] += 1
    rows["all"] = {outcome: sum(row[outcome] for row in rows.values()) for outcome in SHOWN}
    lines = [f"{'room':16}{'mutants':>8}{'noticed':>9}{'time limit':>12}{'not noticed':>13}{'share':>8}"]
    for room, row in rows.items():
        total = sum(row.values())
        share = (row["failed"] + row["time limit"]) / total if total else 0
        lines.append(f"{room:16}{total:8}{row['failed']:9}{row['time limit']:12}{row['passed']:13}{share:8.0%}")
    missed = [mutant for mutant in mutants if results.get(mutant.key, {}).get("outcome") == "passed"]
    for mutant in sorted(missed, key=lambda mutant: (mutant.path, mutant.line)):
        lines += ["", f"not noticed: {mutant.path}:{mutant.line} ({mutant.operator})", mutant.diff()]
    return "\n".join(lines)


def main() -> None:
    """Entry of ``make mutants``."""
    parser = argparse.ArgumentParser(
        description="change the package in one place at a time, and list what no test notices"
    )
    parser.add_argument("--count", type=int, default=20, help="how many mutants (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--rooms", nargs="+", default=["sharding"], help="folders of dsexplore/, or modules at its top")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (default: 2)")
    parser.add_argument("--again", action="store_true", help="test those again that were not noticed before")
    parser.add_argument("--quick", action="store_true", help="run only the test files nearest to the changed module")
    parser.add_argument("--list", action="store_true", help="print the mutants and their changes, and run nothing")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python", help="what runs the tests")
    given = parser.parse_args()
    mutants = draw(given.rooms, given.count, given.seed)
    if given.list:
        print("\n".join(f"{mutant.path}:{mutant.line} {mutant.operator}\n{mutant.diff()}\n" for mutant in mutants))
        return
    before = kept()
    settled = {"failed", "time limit"} if given.again else set(SHOWN)
    left = [mutant for mutant in mutants if before.get(mutant.key, {}).get("outcome") not in settled]
    os.nice(10)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts in the background ignore the first
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="dsexplore-mutants-") as folder:
        try:
            if left:
                run_all(left, Path(folder), given)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here")
    print(report(mutants, kept()))


if __name__ == "__main__":
    main()
