"""Hangs of many kinds on real gloo ranks, and what `explain_hang` says of each: rank, line, reason, and innocents.

Run ``python benchmarks/hangs.py``; ``--only TEXT`` for the cases whose name has that text, ``--sentences`` to read
what is said, ``--part 2/4`` for a quarter of them. Of each case every rank records with ``commtrace(save=…,
timeout=2)``, and the report is made of the folder when the ranks are gone. Bounds: the rank is right in 39 cases of 40,
line and reason in 36, nobody innocent is named, and nothing is said to hang where nothing does.
"""

from __future__ import annotations

import argparse
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hang_cases import CASES, PREFACE, Case

import dsexplore
from dsexplore._internal.analysis.hangs.hang_report import HangReport

SAVED_AFTER, GRACE, GIVEN = 2.0, 6.0, 10.0
"""Seconds: without progress until a rank saves, from a failure until the others are ended, and of a whole run."""


@dataclass(frozen=True)
class Verdict:
    """How much of a report is right."""

    case: Case
    report: HangReport
    rank: bool
    line: bool
    reason: bool
    innocents: tuple[int, ...]


def source_of(case: Case) -> str:
    """Return the program of a case: preface, lines before the block, and the block."""
    block = f"with dsexplore.commtrace(save=folder, timeout={SAVED_AFTER:g}):\n"
    return f"{PREFACE}{case.before}\n{block}{textwrap.indent(case.body, '    ')}\n"


def lines_of(case: Case) -> set[int]:
    """Return the lines that are marked as right."""
    return {number for number, line in enumerate(source_of(case).splitlines(), 1) if line.endswith("# here")}


def judged(case: Case, report: HangReport) -> Verdict:
    """Compare a report with what is right."""
    named = report.culprits or report.suspects
    lines = {int(line.rpartition(":")[2]) for line in report.sources.values() if line.rpartition(":")[2].isdigit()}
    return Verdict(
        case,
        report,
        rank=set(named) == set(case.ranks),
        line=bool(lines) and lines <= lines_of(case) if case.ranks else not lines,
        reason=report.reason in case.reasons,
        innocents=tuple(sorted(set(report.culprits) - set(case.ranks))),
    )


def run(case: Case) -> Verdict:
    """Run a case, and explain what it left."""
    with tempfile.TemporaryDirectory(prefix="dsexplore-hang-") as folder:
        backend = "gloo" if case.has_group else None
        dsexplore.run_ranks(
            source_of(case), case.world_size, namespace={"folder": folder}, backend=backend, timeout=GIVEN, grace=GRACE
        )
        return judged(case, dsexplore.explain_hang(folder))


def row(verdict: Verdict) -> str:
    """Return a line of the table."""
    report, case = verdict.report, verdict.case
    named = ",".join(map(str, report.culprits)) or (
        f"({','.join(map(str, report.suspects))})" if report.suspects else "-"
    )
    lines = ",".join(sorted({line.rpartition(":")[2] for line in report.sources.values()})) or "-"
    marks = " ".join("yes" if right else "NO " for right in (verdict.rank, verdict.line, verdict.reason))
    return f"{case.name:44} {named:10} {lines:8} {report.reason:22} {len(verdict.innocents):9} {marks}"


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the cases whose name has this text")
    parser.add_argument("--sentences", action="store_true", help="print what is said of each")
    parser.add_argument("--part", default="1/1", help="run one of several parts of the cases, 2/4")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    print(f"{'case':44} {'ranks':10} {'line':8} {'reason':22} innocents rank line reason", flush=True)
    verdicts = []
    began = time.monotonic()
    for case in [case for case in CASES if options.only in case.name][part - 1 :: parts]:
        try:
            verdicts.append(run(case))
        except Exception as error:
            print(f"{case.name:44} {type(error).__name__}: {error}"[:200], flush=True)
            continue
        print(row(verdicts[-1]), flush=True)
        if options.sentences:
            print(f"    {verdicts[-1].report.verdict()}", flush=True)
    print_totals(verdicts, time.monotonic() - began)


def print_totals(verdicts: Sequence[Verdict], seconds: float) -> None:
    """Print how many reports are right."""
    hangs = [verdict for verdict in verdicts if verdict.case.ranks]
    others = [verdict for verdict in verdicts if not verdict.case.ranks]
    right = {what: sum(getattr(verdict, what) for verdict in hangs) for what in ("rank", "line", "reason")}
    said = {id(verdict) for verdict in verdicts if verdict.report.reason == "none"}
    counts = ", ".join(f"{what} {count}" for what, count in right.items())
    print(f"{len(hangs)} hangs in {seconds:.0f} s, right: {counts}")
    print(f"innocents named: {sum(len(verdict.innocents) for verdict in verdicts)}")
    of_others, of_hangs = (sum(id(one) in said for one in part) for part in (others, hangs))
    print(f"'nothing hangs' is said of {of_others} of {len(others)} that do not hang, and of {of_hangs} that do")


if __name__ == "__main__":
    main()
