"""Loops that a value of a tensor ends: on fake tensors, which have none, such a loop would run for ever.

``while mask.any():`` reads the same invented answer each time. `Reads` counts the reads on each line of the program;
where a line decides whether a loop goes on, every so many answers are to be the other one, or the program ends with
an error that names the line.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from dsexplore._internal.errors import UsageError

OTHER_ANSWER = 1_000
"""Reads of a truth value, or of a size, on a line that decides a loop, of which the last gets the other answer."""
NUMBERS = 10_000
"""Reads of a number on a line that decides a loop, after which the program ends: no number is the other answer."""
MOST = 1_000_000
"""Reads on any line after which the program ends: a minute of nothing else."""
ENDED = (
    f"a loop read values of fake tensors, which have none, {OTHER_ANSWER:,} times: each {OTHER_ANSWER:,}th answer on "
    "its line is the other one, so that the loop ends"
)


class Reads:
    """Counts the reads of invented values on each line of a program."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._deciding: dict[str, tuple[frozenset[int], frozenset[int]]] = {}  # by file

    def count(self, line: str) -> None:
        """Count a read.

        Args:
            line: the line of the program that reads, ``"train.py:31"``.

        Raises:
            UsageError: the line has read so often that its loop will not end.
        """
        self._counts[line] += 1
        if self._counts[line] >= MOST:
            raise self._endless(line)

    def is_other_answer(self, line: str, frames: Iterator[FrameType], is_number: bool) -> bool:
        """Return True if the last counted read should get another answer than earlier ones.

        Args:
            line: the line of the program that reads.
            frames: the program's frames that are running, the innermost first.
            is_number: whether a number is read, which has no other answer.

        Raises:
            UsageError: a loop that the number decides has read it so often that it will not end.
        """
        if self._counts[line] % (NUMBERS if is_number else OTHER_ANSWER) or not self._decide_a_loop(frames):
            return False
        if is_number:
            raise self._endless(line)
        return True

    def _endless(self, line: str) -> UsageError:
        return UsageError(
            f"{line} has read values of fake tensors, which have none, {self._counts[line]:,} times, so its loop seems "
            f"never to end: give a value that ends it (--value {line}=0, or values={{{line!r}: 0}}), or bound the loop"
        )

    def _decide_a_loop(self, frames: Iterator[FrameType]) -> bool:
        """Return True if the read in the innermost frame or its callers decides whether a ``while`` loop ends."""
        for depth, frame in enumerate(frames):
            file = frame.f_code.co_filename
            if file not in self._deciding:
                self._deciding[file] = _deciding_lines(file)
            asked, assigned = self._deciding[file]
            if frame.f_lineno in asked or (depth == 0 and frame.f_lineno in assigned):
                return True
        return False


def _deciding_lines(file: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return two sets of lines of a file: conditions that end ``while`` loops, and assignments to names in them.

    Conditions are those of the loop and of a ``break`` out of it; assignments count inside such a loop only.
    """
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a cell with magics: its lines are not known
        return frozenset(), frozenset()
    asked: set[int] = set()
    assigned: set[int] = set()
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.While):
            continue
        tests = [loop.test, *_tests_of_breaks(loop.body)]
        names = _names(*tests)
        for test in tests:
            asked |= _lines(test)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and names & _names(*node.targets):
                assigned |= _lines(node)
    return frozenset(asked), frozenset(assigned)


def _tests_of_breaks(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield the conditions under which these statements of a loop break out of it, and not out of an inner one."""
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
