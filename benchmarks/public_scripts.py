"""Run public training scripts, unchanged, with ``dsexplore run``, and compare what a step sends with a closed form.

``benchmarks/data/public_scripts.toml`` names them: repository, commit, path, small arguments, and the message bytes of
one steady step. Each repository is cloned into ``--checkouts`` unless it is there. The scripts find small stand-ins of
the data sets that they read, made here; nothing of a script is changed.

    pip install -r tests/frameworks/requirements.txt -r benchmarks/data/public_scripts_requirements.txt
    python benchmarks/public_scripts.py --checkouts ~/public --write docs/public_scripts.md

Exits with 1 if a script fails or sends other than its closed form says.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import operator
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import torch
from public_data import make_data

import dsexplore._internal.worlds.scripts.run_command  # noqa: F401  what each child would import
from dsexplore import load
from dsexplore._internal.cli import main as command_line

OPS = torch.library.Library("torchvision", "FRAGMENT")
with suppress(ImportError):
    if torch.version.cuda is None and not version("torchvision").endswith("+cpu"):
        for name in ("nms", "qnms"):  # torchvision for CUDA cannot load its operators beside a torch without CUDA
            OPS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision.datasets  # noqa: F401  likewise

HERE = Path(__file__).parent
_TIME_OUT = 600
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Script:
    """One public script, and what a step of it sends."""

    repository: str
    commit: str
    path: str
    arguments: str = ""
    options: str = "--world-size 4 --steps 3"
    """Options of ``dsexplore run``."""
    environment: dict[str, str] = field(default_factory=dict)
    python_path: str = ""
    """Folder of the repository that Python imports from, besides the script's own."""
    links: list[str] = field(default_factory=list)
    """Files and folders of the repository that the script wants in the folder where it is run."""
    bytes: str = ""
    """Message bytes of one steady step, as an arithmetic expression; empty if no closed form is known."""
    form: str = ""
    """The expression in words."""
    refused: str = ""
    """Part of the error that it ends with; empty for a script that runs."""
    needs: str = ""
    """What it needs to run anywhere with these versions, such as an older torch; it is listed, and not run."""

    @property
    def name(self) -> str:
        """Repository, path and arguments."""
        return f"{self.repository} {self.path} {self.arguments}".strip()

    @property
    def file(self) -> str:
        """Name of the file with its result."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16] + ".json"


@dataclass(frozen=True)
class Outcome:
    """What a run of a script printed and recorded."""

    returned: int
    output: str
    seconds: float
    collectives: float = 0
    """Number of collectives in one steady step."""
    message_bytes: float = 0
    """Message bytes of one steady step."""
    headline: str = ""


def evaluate(expression: str) -> int:
    """Evaluate sums and products of whole numbers: ``"4 * (2 + 3)"`` is 20."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                result: int = _OPERATORS[type(op)](value(left), value(right))
                return result
        raise ValueError(f"{expression!r}: write whole numbers with +, -, *, // and parentheses")

    return value(ast.parse(expression, mode="eval").body)


def read_scripts(file: Path = HERE / "data" / "public_scripts.toml") -> list[Script]:
    """Read the table of scripts."""
    return [Script(**entry) for entry in tomllib.loads(file.read_text())["script"]]


def checkout(script: Script, folder: Path) -> Path:
    """Return the folder of the script's repository at its commit, cloned if it is not there."""
    place = folder / script.repository
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        url = f"https://github.com/{script.repository}"
        subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", url, str(place)], check=True)
        subprocess.run(["git", "-C", str(place), "checkout", "--quiet", script.commit], check=True)
    return place


def run(script: Script, place: Path, data: Path, work: Path) -> Outcome:
    """Run one script in the folder ``work``, which has the stand-ins where scripts look for them."""
    work.mkdir(parents=True)
    for entry in data.iterdir():
        (work / entry.name).symlink_to(entry)
    for link in script.links:
        (work / link).symlink_to(place / link)
    names = {"checkout": place, "data": data}
    arguments = [word.format(**names) for word in shlex.split(script.arguments)]
    saved, printed, step = work / "trace.parquet", work / "printed.txt", work / "step.json"
    options = [*shlex.split(script.options), "--save", str(saved)]
    environment = {key: value.format(**names) for key, value in script.environment.items()}
    search = [str(place / script.python_path)] if script.python_path else []

    def run_script() -> None:
        os.chdir(work)
        os.environ.update(environment)
        sys.path[:0] = search
        _run_line([*options, str(place / script.path), *arguments])

    began = time.monotonic()
    returned = _in_child(run_script, printed)
    seconds = time.monotonic() - began
    if saved.exists():
        _in_child(lambda: step.write_text(json.dumps(_one_step(saved))), work / "summed.txt")
    sums = json.loads(step.read_text()) if step.exists() else []
    return Outcome(returned, printed.read_text(errors="replace"), seconds, *sums)


def _run_line(arguments: Sequence[str]) -> None:
    """Run ``dsexplore run`` with these arguments in this process."""
    if "torchvision" in sys.modules:  # it compares CIFAR's files with known sums, which stand-ins do not have
        mock.patch("torchvision.datasets.cifar.check_integrity", return_value=True).start()
    sys.argv = ["dsexplore", "run", *arguments]
    raise SystemExit(command_line())


def _in_child(task: Callable[[], object], printed: Path) -> int:
    """Run a task in a fork of this process, which has torch loaded already, and return its exit status."""
    child = os.fork()
    if child:
        return _status(child)
    status = 1
    try:
        os.setsid()
        with printed.open("w") as file, Path(os.devnull).open() as nothing:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.dup2(nothing.fileno(), 0)
        task()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status(child: int) -> int:
    """Wait for a child, at most `_TIME_OUT` seconds; 124 for one that had to be stopped."""
    end = time.monotonic() + _TIME_OUT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _one_step(saved: Path) -> tuple[float, float, str]:
    """Return the number of collectives and the message bytes of one steady step, and the headline."""
    trace = load(saved)
    headline = trace.headline()
    steady = headline.steady
    count = steady.count * max(1, headline.ranks)
    return len(steady.events) / count, float(steady.events["message_bytes"].sum()) / count, str(headline)


def verdict(script: Script, outcome: Outcome) -> str:
    """Return what is wrong with an outcome; empty if nothing is."""
    if script.refused:
        return "" if script.refused in outcome.output else "it is not refused as it should be"
    if outcome.returned:
        return f"it ended with {outcome.returned}"
    if script.bytes and outcome.message_bytes != evaluate(script.bytes):
        return f"a step sends {outcome.message_bytes:,.0f} B, and not {evaluate(script.bytes):,}"
    return ""


def main() -> None:
    """Run the scripts that the command line names, or all, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, required=True, help="folder with owner/name of each repository")
    parser.add_argument("--only", nargs="*", default=[""], help="run those whose name contains one of these")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder with one JSON file for each run")
    parser.add_argument("--write", type=Path, help="file for the table of all results there, in Markdown")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    scripts = read_scripts()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data_sets"
        make_data(data)
        for number, script in enumerate(scripts):
            if script.needs or not any(part in script.name for part in options.only):
                continue
            place = checkout(script, options.checkouts.resolve())
            outcome = run(script, place, data, Path(folder) / str(number))
            fault = verdict(script, outcome)
            wrong += bool(fault)
            print(f"{f'WRONG, {fault}' if fault else 'right'}: {script.name[:120]} ({outcome.seconds:.0f} s)")
            print(f"    {outcome.collectives:g} collectives, {outcome.message_bytes:,.0f} B; {outcome.headline[:200]}")
            sys.stdout.flush()
            (options.results / script.file).write_text(json.dumps({"name": script.name, **asdict(outcome)}, indent=1))
    if options.write:
        options.write.write_text(page([(script, _result(script, options.results)) for script in scripts]))
    raise SystemExit(1 if wrong else 0)


def _result(script: Script, results: Path) -> Outcome | None:
    """Return the outcome of the last run of a script; None if it has not run."""
    file = results / script.file
    if not file.exists():
        return None
    content = json.loads(file.read_text())
    del content["name"]
    return Outcome(**content)


def page(outcomes: Sequence[tuple[Script, Outcome | None]]) -> str:
    """Return the page of the documentation: what ran, what a step sent, and what does not run."""
    ran = [(script, outcome) for script, outcome in outcomes if outcome is not None and not _does_not_run(script)]
    right = [(script, outcome) for script, outcome in ran if not verdict(script, outcome)]
    lines = [
        "# Public scripts that run unmodified",
        "",
        "`benchmarks/public_scripts.py` fetches these training scripts, which nobody here wrote, at a commit, runs",
        "them with `dsexplore run` and arguments that make them small, on stand-ins of the data that they read, and",
        *_counts(outcomes, right),
        "",
        "| repository, commit | command | collectives a step | message bytes a step | closed form |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(script, outcome) for script, outcome in right]
    others = [(script, outcome) for script, outcome in outcomes if (script, outcome) not in right]
    titles = {True: "What runs nowhere with the versions tried, and why:", False: "What does not run here, and why:"}
    for has_needs, title in titles.items():
        listed = [(script, outcome) for script, outcome in others if bool(script.needs) is has_needs]
        if listed:
            lines += ["", title, ""]
            lines += [
                f"- `{script.repository}` `{script.path}`: "
                f"{script.needs or script.refused or verdict(script, outcome or Outcome(1, '', 0))}"
                for script, outcome in listed
            ]
    return "\n".join(lines) + "\n"


def _does_not_run(script: Script) -> bool:
    return bool(script.needs or script.refused)


def _counts(outcomes: Sequence[tuple[Script, Outcome | None]], right: Sequence[tuple[Script, Outcome]]) -> list[str]:
    """Return how many scripts were tried, how many can run with these versions, and how many of these do."""
    possible = [script for script, _ in outcomes if not script.needs]
    repositories = len({script.repository for script, _ in right})
    return [
        f"writes this page. {len(right)} scripts of {repositories} repositories run; "
        f"{sum(bool(script.bytes) for script, _ in right)} have a closed form",
        "of the message bytes of one steady step, to which they are equal. A program without an optimizer is one step.",
        "",
        f"Tried were {len(outcomes)} scripts, none of which brings CUDA source of its own. "
        f"{len(outcomes) - len(possible)} of them need an older torch or",
        f"library, or a repair, on any machine; of the other {len(possible)}, "
        f"{len(right)} run: {100 * len(right) // len(possible)} %.",
    ]


def _row(script: Script, outcome: Outcome) -> str:
    """Return one line of the table."""
    where = f"[{script.repository}](https://github.com/{script.repository}) {script.commit}"
    arguments = script.arguments.replace("{checkout}/", "").replace("{data}/", "")
    command = " ".join(part for part in ("dsexplore run", script.options, script.path, arguments) if part)
    form = f"{script.form}: `{script.bytes.replace('*', '·')}`" if script.bytes else script.form or "none known"
    return f"| {where} | `{command}` | {outcome.collectives:g} | {outcome.message_bytes:,.0f} | {form} |"


if __name__ == "__main__":
    main()
