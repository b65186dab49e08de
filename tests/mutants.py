"""Change the package in one place at a time, and list the changes that no test notices. Usage: make mutants

    make mutants ARGS="--count 200 --seed 1 --rooms trace capture comm aio sharding worlds"

A mutant is the package with one small change: a comparison turned, ``and`` for ``or``, ``not`` added or taken away,
a number off by one, ``+`` for ``-``, ``break`` for ``continue``, a loop that never runs, ``return None``. Mutants are
drawn by the seed over all places of the chosen rooms; annotations, type aliases, ``if TYPE_CHECKING`` blocks, the
options of dataclasses and the ``strict`` of ``zip`` are left alone. For each, pytest runs the test files nearest to the
changed module first, then the others of its room, until one fails; the result names the one that did. A mutant that no
test notices lacks a test, or sits in code that does nothing.

The changes are made in copies of the working tree, one for each process, which are removed in the end; the tree itself
can be worked on meanwhile. Results are kept in ``build/mutants/results.jsonl``, by the changed file's content, so that
an interrupted run goes on where it stopped.
Cosmic-ray makes the changes, because it changes the text of one file. It lives in an environment of its own:
``make mutants`` sets it up. Mutmut was tried too: it rewrites each function into a trampoline with all its mutants,
which the recorder would read off the Python stack; it makes all mutants of a folder at once where some are drawn here
by a seed; and it forks a process that has loaded torch, in which most of them ran into its time limit.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import hashlib
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Keyword, ReturnStmt

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsexplore" / "_internal"
RESULTS = ROOT / "build" / "mutants" / "results.jsonl"

TURNED = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
    "Lt": ("LtE", "GtE"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "LtE"),
    "GtE": ("Gt", "Lt"),
}
EXCHANGED = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "Div": "Mul",
    "FloorDiv": "Mul",
    "Mod": "FloorDiv",
    "Pow": "Mul",
    "BitOr": "BitAnd",
    "BitAnd": "BitOr",
    "BitXor": "BitOr",
    "LShift": "RShift",
    "RShift": "LShift",
}
OPERATORS = (
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, others in TURNED.items() for b in others),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in EXCHANGED.items()),
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "NumberReplacer",
    "ZeroIterationForLoop",
)

Position = tuple[int, int]


class ReturnNone(Operator):  # type: ignore[misc]  # cosmic-ray is not there when mypy runs
    """``return value`` → ``return None``."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        """Yield the returned expression, where it is not None anyway."""
        if isinstance(node, ReturnStmt) and len(node.children) == 2 and node.children[1].get_code().strip() != "None":
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement with None in place of its expression."""
        node.children[1] = Keyword("None", node.children[1].start_pos, prefix=" ")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None: cosmic-ray's own tests ask for them."""
        return ()


def operators() -> dict[str, Operator]:
    """Return the changes that are made, by name."""
    return {"ReturnNone": ReturnNone(), **{name: get_operator(f"core/{name}")() for name in OPERATORS}}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """The package with one change."""

    path: str
    """The changed file, relative to the root."""
    line: int
    operator: str
    occurrence: int
    """Which of the file's places for this operator."""
    original: str = dataclasses.field(repr=False)
    """The text of the unchanged file."""

    @property
    def key(self) -> str:
        """What the results are kept by."""
        digest = hashlib.sha256(self.original.encode()).hexdigest()[:16]
        return f"{self.path}:{self.operator}:{self.occurrence}:{digest}"

    def code(self) -> str:
        """Return the text of the changed file."""
        code: str = mutate_code(self.original, operators()[self.operator], self.occurrence)
        return code

    def is_python(self) -> bool:
        """Return whether the changed file is Python: a ``*`` or ``/`` between parameters is not an operator."""
        try:
            ast.parse(self.code())
        except SyntaxError:
            return False
        return True

    def diff(self) -> str:
        """Return the changed lines, before and after."""
        lines = difflib.unified_diff(self.original.splitlines(), self.code().splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def places(path: Path) -> list[list[Mutant]]:
    """Return, for each place of a file that can be changed, the mutants that differ there."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    unchanged = list(left_alone(ast.parse(source)))
    found: dict[Position, list[Mutant]] = {}
    for name, operator in operators().items():
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(positions):
            if not any(first <= start < last for first, last in unchanged):
                mutant = Mutant(str(path.relative_to(ROOT)), start[0], name, occurrence, source)
                found.setdefault(start, []).append(mutant)
    return [found[start] for start in sorted(found)]


def left_alone(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yield where a change would alter nothing that runs, from and up to (line, column)."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.returns is not None:
                    yield extent(node.returns)
                if any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                    yield extent(node)
            case ast.arg(annotation=ast.expr() as annotation):
                yield extent(annotation)
            case ast.AnnAssign():
                yield extent(node.annotation)
                if "TypeAlias" in ast.unparse(node.annotation) and node.value is not None:
                    yield extent(node.value)
            case ast.ClassDef():
                yield from (extent(decorator) for decorator in node.decorator_list)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test) or "__main__" in ast.unparse(node.test):
                yield extent(node)
            case ast.keyword(arg="strict"):
                yield extent(node.value)
            case ast.Call() if ast.unparse(node.func) in ("cast", "typing.cast", "TypeVar"):
                yield extent(node)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and is_type_alias(statement.value):
            yield extent(statement)


def is_type_alias(value: ast.expr) -> bool:
    """Return whether a module's assignment names a type: ``Callable[..., Any]``, ``int | str``."""
    parts = list(ast.walk(value))
    return all(isinstance(part, OF_TYPES) for part in parts) and any(
        isinstance(part, ast.Subscript | ast.BinOp) for part in parts
    )


OF_TYPES = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.BinOp, ast.BitOr, ast.Load)


def extent(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
    """Return where a node begins and ends, as (line, column)."""
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def sources(room: str) -> list[Path]:
    """Return the files of a room; of ``units`` the one file ``units.py``."""
    single = PACKAGE / f"{room}.py"
    found = [single] if single.exists() else sorted((PACKAGE / room).rglob("*.py"))
    if not found:
        sys.exit(f"there is no room {room!r}: give a folder of dsexplore/, or a module at its top such as units")
    return found


def draw(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants at places drawn by the seed, in the order of drawing: of each place one, where that is still Python."""
    generator = random.Random(seed)
    everywhere = [place for room in rooms for path in sources(room) for place in places(path)]
    chosen = generator.sample(everywhere, min(count, len(everywhere)))
    return [mutant for mutant in map(generator.choice, chosen) if mutant.is_python()]


def files_of(path: str, nearest_alone: bool) -> list[str]:
    """Return the test files of a module's room, nearest first; or the nearest alone, where there are any.

    Nearest are those named like the module and those that import it, else those that name one of its functions or
    classes, else those of its folder.
    """
    parts = Path(path).with_suffix("").parts[1:]
    parts = parts[1:] if parts[0] == "_internal" else parts
    folder = ROOT / "tests" / parts[0] if len(parts) > 1 else ROOT / "tests"
    files = sorted(folder.rglob("test_*.py") if len(parts) > 1 else folder.glob("test_*.py"))
    name = parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    defined = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    names = [node.name for node in defined if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    imported = re.compile(rf"\b(?:{'.'.join(('dsexplore', '_internal', *parts))}|import .*\b{name})\b")
    named = re.compile(rf"\b(?:{'|'.join(names)})\b") if names else None
    kinds: tuple[Callable[[Path], Any], ...] = (
        lambda file: file.stem.startswith(f"test_{name.strip('_')}") or imported.search(texts[file]),
        lambda file: named is not None and named.search(texts[file]),
        lambda file: file.parent == ROOT.joinpath("tests", *parts[:-1]),
    )
    nearest = next((found for kind in kinds if (found := list(filter(kind, files)))), files)
    nearest.sort(key=lambda file: not file.stem.startswith(f"test_{name.strip('_')}"))
    others = [] if nearest_alone else [file for file in files if file not in nearest]
    return [str(file.relative_to(ROOT)) for file in [*nearest, *others]]


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
        """By the copy in which it runs."""
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
                outcome = (
                    "stopped" if self._stopped else "passed" if code in (0, 5) else "failed"
                )  # 5: no test is there
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
    """End a test run in a copy, and what its tests started and left, in other sessions too, as engines of a cluster."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    while left := processes_of(copy):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes_of(copy: Path) -> list[int]:
    """Return the processes that inherited the environment of a test run in that copy."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if f"PYTHONPATH={copy}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def kept() -> dict[str, dict[str, Any]]:
    """Results of earlier runs, by the mutant's key."""
    if not RESULTS.exists():
        return {}
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return {result["key"]: result for result in map(json.loads, lines)}


def keep(mutant: Mutant, outcome: str, seconds: float, noticed_by: Sequence[str]) -> dict[str, Any]:
    """Append one result to the file, with the tests that failed."""
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
    """Which tests fail on the unchanged package too: they would notice every mutant.

    Tests are asked for one by one, as they fail. A test that needs more than `MEMORY` is one of them.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._lock = threading.Lock()
        self._fails: dict[str, bool] = {}

    @property
    def failing(self) -> list[str]:
        """Those found so far."""
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
    """Do the work for every item, some at once; an error or Ctrl-C ends the tests that run."""
    with ThreadPoolExecutor(processes) as pool:
        try:
            list(pool.map(work, items))
        except BaseException:
            copies.stop()
            raise


def run_all(mutants: Sequence[Mutant], folder: Path, given: argparse.Namespace) -> None:
    """Test each mutant in copies of the tree, and print and keep its result as it comes."""
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
    """Return how the tests of a room end on a mutant, without those that fail anyway; and the tests that failed."""
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
