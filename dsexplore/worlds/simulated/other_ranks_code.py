"""Code of a script that only another rank than the played one runs: what it sends is in no trace of this rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dsexplore.capture.source_lines import file_name


def code_of_other_ranks(script: Path, rank: int, world_size: int) -> list[str]:
    """Return a note for each ``if rank == 1:`` of a script whose rank is not the one that is played.

    Rank 0 is left out: code for it alone is mostly logging.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        f"what is under `{ast.unparse(test)}` ({file_name(str(script.absolute()))}:{test.lineno}) runs on rank {other} "
        f"only, and this is rank {rank}: --rank {other} plays it"
        for test, other in _tests_of_a_rank(tree)
        if 0 < other < world_size and other != rank
    ]


def _tests_of_a_rank(tree: ast.AST) -> Iterator[tuple[ast.Compare, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
            test = node.test
            value = test.comparators[0]
            named = ast.unparse(test.left).lower()
            is_rank = named.removesuffix("()").endswith("rank") and "local" not in named
            if (
                is_rank
                and isinstance(test.ops[0], ast.Eq)
                and isinstance(value, ast.Constant)
                and type(value.value) is int
            ):
                yield test, value.value
