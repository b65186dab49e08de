"""`Reads`: ends loops that depend on the value of a tensor, which on fake tensors would run forever.

``while mask.any():`` reads the same invented answer each time. `Reads` counts the reads on each line of the program. If
a line decides whether a loop continues, every 1,000th answer is the other one; if the line reads numbers, an error
names it after 10,000 reads.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from dsexplore._internal.errors import UsageError

OTHER_ANSWER = 1_000
"""On a line that decides a loop, every so many reads of a truth value or of a size get the other answer."""
NUMBERS = 10_000
"""Reads of a number on a line that decides a loop, after which the program ends: a number has no other answer."""
MOST = 1_000_000
"""Reads on any line after which the program ends; they take about a minute."""
ENDED = (
    f"a loop read values of fake tensors, which have no values, {OTHER_ANSWER:,} times: each {OTHER_ANSWER:,}th answer "
    "on its line is the other one, so that the loop ends"
)


class Reads:
    """Counts the reads of invented values on each line of a program."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._deciding: dict[str, tuple[frozenset[int], frozenset[int]]] = {}  # by file

    def count(self, line: str) -> None:
        """Count a read.

        Args:
            line: line of the program that reads, ``"train.py:31"``.

        Raises:
            UsageError: the line has been read from `MOST` times.
        """
        self._counts[line] += 1
        if self._counts[line] >= MOST:
            raise self._endless(line)

    def is_other_answer(self, line: str, frames: Iterator[FrameType], is_number: bool) -> bool:
        """Return True if the last counted read should get another answer than earlier ones.

        Args:
            line: line of the program that reads.
            frames: running frames of the program, the innermost first.
            is_number: whether a number is read, which has no other answer.

        Raises:
            UsageError: the line decides a loop, and has read a number `NUMBERS` times.
        """
        if self._counts[line] % (NUMBERS if is_number else OTHER_ANSWER) or not self._decide_a_loop(frames):
            return False
        if is_number:
            raise self._endless(line)
        return True

    def _endless(self, line: str) -> UsageError:
        return UsageError(
            f"{line} has read values of fake tensors, which have no values, {self._counts[line]:,} times, so its loop "
            f"may never end: give a value that ends it (--value {line}=0, or values={{{line!r}: 0}}), or bound the loop"
        )

    def _decide_a_loop(self, frames: Iterator[FrameType]) -> bool:
        """Return True if the read in the innermost frame or its callers decides whether a ``while`` loop ends."""
        for depth, frame in enumerate(frames):
            file = frame.f_code.co_filename
            if file not in self._deciding:
                self._deciding[file] = _deciding_lines(file)
            conditions, assignments = self._deciding[file]
            if frame.f_lineno in conditions or (depth == 0 and frame.f_lineno in assignments):
                return True
        return False


def _deciding_lines(file: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the lines of a file that decide when its ``while`` loops end.

    Returns:
        Lines of conditions, of the loop itself or of a ``break`` out of it; and lines inside the loop that assign to a
        name in such a condition.
    """
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a cell with magics
        return frozenset(), frozenset()
    conditions: set[int] = set()
    assignments: set[int] = set()
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.While):
            continue
        tests = [loop.test, *_tests_of_breaks(loop.body)]
        names = _names(*tests)
        for test in tests:
            conditions |= _lines(test)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and names & _names(*node.targets):
                assignments |= _lines(node)
    return frozenset(conditions), frozenset(assignments)


def _tests_of_breaks(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield the conditions under which the statements of a loop's body break out of this loop."""
    for statement in body:
        if isinstance(statement, ast.If):
            branches = [*statement.body, *statement.orelse]
            if any(isinstance(branch, ast.Break) for branch in branches):
                yield statement.test
            yield from _tests_of_breaks(branches)
        elif isinstance(statement, (ast.With, ast.Try)):
            yield from _tests_of_breaks(statement.body)


def _names(*expressions: ast.expr) -> set[str]:
    return {node.id for expression in expressions for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _lines(node: ast.expr | ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
