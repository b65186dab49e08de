"""List the features that the readme and its long form name, and no tutorial, how-to page or lesson shows.

Usage: python docs/features.py   (the exit status is 1 where there are any)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMED = (HERE.parent / "README.md", HERE / "everything.md")
FEATURE = re.compile(
    r"\bdsexplore\.(?!com\b|git\b)(?:(?:aio|comm|cost|sharding|lessons)\.)?\w+"  # dsexplore.cost.collective_time
    r"|\bdsexplore (?:run|lab|demo|show|hang|aio|comm|loading|checkpoint|offload|feeding)\b"
    r"|\b(?:trace|before)\.[a-z_]+(?=\()"  # trace.skew(
    r"|%%?commtrace(?: --[a-z-]+)?"
)
SAME = {"before.diff": "trace.diff", "dsexplore.comm": "dsexplore.comm", "dsexplore lab": "dsexplore lab"}
"""Other spellings of a feature."""


def features(text: str) -> set[str]:
    """Return the features that a text names: public names, methods of traces, commands, the magic with its options."""
    return {SAME.get(name, name) for name in FEATURE.findall(text)}


def guides() -> str:
    """Return the text of all tutorials, how-to pages and lessons."""
    notebooks = sorted((HERE.parent / "notebooks").rglob("*.ipynb"))
    cells = [cell for path in notebooks for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    others = ("start.md", "cluster.md", "errors.md", "moving_from_deepspeed.md")
    pages = [*sorted(HERE.glob("howto/*.md")), *(HERE / name for name in others)]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    return "\n".join([*("".join(cell["source"]) for cell in cells), *texts])


def without_guide() -> list[str]:
    """Return the features that are named and shown nowhere."""
    shown = guides()
    named = set().union(*(features(path.read_text(encoding="utf-8")) for path in NAMED))
    return sorted(name for name in named if not re.search(_use_of(name), shown, re.MULTILINE))


def _use_of(feature: str) -> str:
    """Return the pattern of a feature's use: a method by its name on any object, an option on any line of the magic,
    an error by its section."""
    if "commtrace --" in feature:
        return rf"commtrace\b[^\n]*{feature.rpartition(' ')[2]}\b"
    if feature.endswith("Error"):
        return rf"^## {feature.rpartition('.')[2]}$"
    if feature.startswith("trace."):
        return rf"\.{feature.partition('.')[2]}\("
    return re.escape(feature)


if __name__ == "__main__":
    found = without_guide()
    print("\n".join(found) or "every feature has a tutorial, a how-to page or a lesson")
    sys.exit(bool(found))
