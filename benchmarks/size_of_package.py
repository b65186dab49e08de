"""What must be read to know the package: modules, lines, names and docstrings, of one commit or several side by side.

    python benchmarks/size_of_package.py [COMMIT ...] [--rooms] [--abilities] [--suite JUNIT.xml]

Code lines are those without comments, docstrings and blank lines. Goals: 380 modules and 58,000 lines. Where the lines
went is printed by ``--abilities``, ability by ability as a table of CONTRIBUTING.md lists their folders.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
WORDS = {"told", "taken", "moved", "alike", "found", "one", "each", "whose", "own", "known"}
"""Words in private names that do not say what the thing is."""
NO_VERBS = {"The", "A", "An", "By", "That", "Those", "What", "Whether", "Which", "Who", "Whose", "Where", "When", "How"}
NO_VERBS |= {"All", "Any", "As", "Each", "Every", "For", "From", "If", "In", "It", "Its", "No", "Nothing", "Of", "On"}
NO_VERBS |= {"One", "Some", "These", "This", "With", "None", "True", "False", "Called", "Returns"}
LONG = 40
"""Most lines of a function, from the first statement behind its docstring; with more it is counted as long."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Size:
    """Counts of a package."""

    modules: Counter[str] = field(default_factory=Counter)
    """Number of modules by room, as are the other two."""
    lines: Counter[str] = field(default_factory=Counter)
    code: Counter[str] = field(default_factory=Counter)
    of_module: dict[str, tuple[int, int]] = field(default_factory=dict)
    """{path in the package: lines, code lines}."""
    longest: int = 0
    modules_of_class: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    docstrings: int = 0
    """Number of functions and methods with a docstring."""
    verbs: int = 0
    """Number of those docstrings that begin with a verb, and of properties without an article."""
    private_names: int = 0
    """Number of places that define a private name with one of `WORDS`."""
    variables: int = 0
    """Number of places that assign a variable, or name a parameter, that is one of `WORDS`."""
    long_functions: int = 0

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what was counted, and the number as text."""
        yield "modules", f"{self.modules.total():,}"
        yield "lines", f"{self.lines.total():,}"
        yield "code lines", f"{self.code.total():,}"
        yield "lines of the longest module", f"{self.longest:,}"
        yield "class names in two or more modules", f"{sum(len(homes) > 1 for homes in self.modules_of_class.values())}"
        yield "docstrings in imperative form", f"{self.verbs / max(self.docstrings, 1):.1%}"
        yield "private names with the listed words", f"{self.private_names:,}"
        yield "variables that are a listed word", f"{self.variables:,}"
        yield f"functions of more than {LONG} lines", f"{self.long_functions:,}"

    def of(self, folders: Sequence[str], others: Sequence[str]) -> str:
        """Return modules, lines and code lines in some folders, without those in `others`, as text."""
        mine = [path for path in self.of_module if nearest(path, others) in folders]
        counts = [sum(column) for column in zip(*(self.of_module[path] for path in mine), strict=True)] or [0, 0]
        return f"{len(mine)} / {counts[0]:,} / {counts[1]:,}"


def sources(commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each module of a commit; of the working tree for an empty one."""
    if not commit:
        for path in sorted((ROOT / "dsexplore").rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        return
    archive = subprocess.run(["git", "archive", commit, "dsexplore"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in files:
            if member.name.endswith(".py") and (file := files.extractfile(member)) is not None:
                yield member.name, file.read().decode()


def size_of(commit: str) -> Size:
    """Count what a commit's package has."""
    size = Size()
    for path, text in sources(commit):
        place = path.removeprefix("dsexplore/").removeprefix("_internal/")  # where all but the public modules are
        room = place.split("/")[0] if "/" in place else "(top)"
        size.modules[room] += 1
        size.lines[room] += text.count("\n")
        size.code[room] += code_lines(text)
        size.of_module[place] = text.count("\n"), code_lines(text)
        size.longest = max(size.longest, text.count("\n"))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                size.modules_of_class[node.name].add(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
                size.docstrings += 1
                is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                size.verbs += re.split(r"[ ,]", docstring)[0] not in ({"The", "A", "An"} if is_property else NO_VERBS)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                code = node.body[1:] if ast.get_docstring(node) is not None else node.body
                length = node.end_lineno - code[0].lineno + 1 if code else 0
                size.long_functions += length > LONG
            size.private_names += any(map(has_listed_word, names_defined(node)))
            size.variables += isinstance(node, ast.arg) and node.arg in WORDS
            size.variables += isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in WORDS
    return size


def code_lines(text: str) -> int:
    """Return the number of lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.line.lstrip().startswith('"""')
        if token.type not in NO_CODE and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def names_defined(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node defines or assigns."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def has_listed_word(name: str) -> bool:
    """Return True for a private name with one of `WORDS`."""
    return name.startswith("_") and not WORDS.isdisjoint(name.strip("_").lower().split("_"))


def abilities() -> dict[str, list[str]]:
    """Return {ability: its folders and modules} as the last table of CONTRIBUTING.md lists them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## What takes the lines\n")[2]
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    return {cells[0]: re.findall(r"`([^`]+)`", cells[1]) for cells in rows if "`" in cells[-1]}


def nearest(path: str, folders: Sequence[str]) -> str:
    """Return the innermost of some folders that a module is in; empty if it is in none.

    Raises:
        LookupError: no folder holds it, and ``*.py`` is not among them.
    """
    within = [folder for folder in folders if path.startswith(folder)]
    if not within and "/" in path:
        raise LookupError(f"CONTRIBUTING.md names no ability for {path}")
    return max(within, key=len, default="*.py")


def minutes(junit: Path) -> float:
    """Return the minutes that the tests of a report took, all workers together."""
    return sum(float(case.get("time", 0)) for case in ElementTree.parse(junit).iter("testcase")) / 60


def main() -> None:
    """Print a column for each commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", default=[""], help="commits to count; the working tree if none is given")
    parser.add_argument("--rooms", action="store_true", help="also print modules, lines and code lines by room")
    parser.add_argument("--abilities", action="store_true", help="also print them by ability of CONTRIBUTING.md")
    parser.add_argument("--suite", type=Path, action="append", default=[], help="a report of pytest's --junit-xml")
    options = parser.parse_args()
    sizes = [size_of(commit) for commit in options.commits]
    print(f"{'':40}", *(f"{commit or 'working tree':>22}" for commit in options.commits))
    for rows in zip(*(size.rows() for size in sizes), strict=True):
        print(f"{rows[0][0]:40}", *(f"{number:>22}" for _, number in rows))
    for room in sorted({room for size in sizes for room in size.modules}) if options.rooms else ():
        cells = (f"{size.modules[room]} / {size.lines[room]:,} / {size.code[room]:,}" for size in sizes)
        print(f"{room:40}", *(f"{cell:>22}" for cell in cells))
    listed = abilities() if options.abilities else {}
    every = [folder for folders in listed.values() for folder in folders]
    for ability, folders in listed.items():
        print(f"{ability:64}", *(f"{size.of(folders, every):>22}" for size in sizes))
    if listed:
        before = [folder for ability, folders in listed.items() if not ability.startswith("+") for folder in folders]
        print(f"{'all that are not marked +':64}", *(f"{size.of(before, every):>22}" for size in sizes))
    for junit in options.suite:
        print(f"{junit.name}: {minutes(junit):.0f} minutes of tests, all workers together")


if __name__ == "__main__":
    main()
