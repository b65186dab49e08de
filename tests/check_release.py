"""Check the files of a release, and list what a person has left to do before the upload. Usage: make release

Files that lack something, have something too much, or name another version are faults: the exit status is 1. A change
log without a date and links that nothing answers yet are listed, and are no faults before the day of the release.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IN_WHEEL = (
    "dsexplore/py.typed",
    "dsexplore/notebooks/01_first_trace.ipynb",
    "dsexplore/_internal/aio/backends/flow.c",
    "dsexplore/_internal/cost/clusters/dgx-h100.toml",
)
IN_SDIST = (
    *(name.replace("dsexplore/notebooks", "notebooks") for name in IN_WHEEL),
    *("docs/index.md", "tests/conftest.py", "Makefile", "constraints.txt", "CHANGELOG.md", "conda/recipe.yaml"),
)
NOWHERE = re.compile(r"__pycache__|\.ipynb_checkpoints|/artefacts/|(^|/)build/|docs/tutorials|reference/api|\.venv")
MOST_BYTES = {"whl": 4 << 20, "gz": 8 << 20}
PATIENCE = 10
"""Seconds in which a link must answer."""


def version() -> str:
    """Return the version that the package says of itself."""
    text = (ROOT / "dsexplore" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def names_in(file: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist; those of an sdist without its folder."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return wheel.namelist()
    with tarfile.open(file) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the files of a release."""
    files = sorted(folder.iterdir())
    wanted = {f"dsexplore-{version()}-py3-none-any.whl", f"dsexplore-{version()}.tar.gz"}
    if {file.name for file in files} != wanted:
        yield f"{folder} has {', '.join(file.name for file in files) or 'no files'}, not {' and '.join(sorted(wanted))}"
    for file in files:
        names = names_in(file)
        needed = IN_WHEEL if file.suffix == ".whl" else IN_SDIST
        yield from (f"{file.name} lacks {name}" for name in needed if name not in names)
        yield from (f"{file.name} has {name}" for name in names if NOWHERE.search(name))
        if file.suffix == ".whl":
            top = (f"dsexplore-{version()}.dist-info/", "dsexplore/")
            yield from (f"{file.name} has {name}" for name in names if not name.startswith(top))
        if file.stat().st_size > MOST_BYTES[file.suffix[1:]]:
            yield f"{file.name} has {file.stat().st_size:,} bytes, more than {MOST_BYTES[file.suffix[1:]]:,}"
    for name, pattern in (("CITATION.cff", "version: {}\n"), ("conda/recipe.yaml", 'version: "{}"\n')):
        if pattern.format(version()) not in (ROOT / name).read_text(encoding="utf-8"):
            yield f"{name} has another version than {version()}"


def left_to_do() -> Iterator[str]:
    """Yield what a person must do before the upload."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version())} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
        yield f"CHANGELOG.md: give {version()} the date of the release"
    for address in dict.fromkeys(PROJECT["urls"].values()):
        try:
            urllib.request.urlopen(address, timeout=PATIENCE).close()
        except (OSError, ValueError) as error:
            yield f"{address} does not answer ({error}): publish it, or correct pyproject.toml and errors.py"
    yield f"git tag v{version()}, twine upload, then conda-forge's recipe"


def main(folder: Path) -> int:
    """Print faults and what is left to do; return 1 if there are faults."""
    found = list(faults(folder))
    for fault in found:
        print(f"fault: {fault}")
    for file in sorted(folder.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes, {len(names_in(file)):,} files")
    for task in left_to_do():
        print(f"before the upload: {task}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
