"""The code of the site's pages runs as a reader would run it, and the pages agree with the package.

A block marked ``python`` is run, in one namespace for each page; with a caption it is a file of that name; a line of a
block marked ``console`` is a command. Blocks marked ``text`` need what is not here: a disk, a cluster, a notebook.

Modules: none of the package.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from dsexplore._internal.cli import main

DOCS = Path(__file__).parents[1] / "docs"
SINGLE = ("start.md", "everything.md", "errors.md", "lessons.md", "cost.md", "cost_tables.md")
PAGES = sorted({*(DOCS / name for name in SINGLE), *DOCS.glob("howto/*.md"), *DOCS.glob("concepts/*.md")})
FENCE = re.compile(r"^```(\{code-block\} )?(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CAPTION = re.compile(r":caption: (\S+)\n+")


class Block(NamedTuple):
    """One block of code: its language, the file that it is, and its lines."""

    language: str
    file: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    for _, language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        caption = CAPTION.match(code)
        yield Block(language, caption[1] if caption else "", code[caption.end() :] if caption else code)


WITH_CODE = [page for page in PAGES if any(blocks(page))]


@pytest.mark.usefixtures("registered")
@pytest.mark.processes
@pytest.mark.parametrize("page", WITH_CODE, ids=[page.stem for page in WITH_CODE])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["page"])
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif block.language == "console":
            for line in block.code.splitlines():
                prompt, command, *arguments = shlex.split(line)
                assert (prompt, command) == ("$", "dsexplore")
                assert main(arguments) == 0
        else:
            exec(compile(block.code, str(page), "exec"), namespace)


def test_every_page_is_reached_from_the_first_one() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert str(page.relative_to(DOCS).with_suffix("")) in index, page


def test_every_feature_has_a_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    features = import_module("features")
    assert features.without_guide() == []
    assert {"trace.skew", "%%commtrace --real", "dsexplore run", "dsexplore.cost.collective_time"} <= features.features(
        "`trace.skew()`, `%%commtrace --real 4`, `dsexplore run x.py`, `dsexplore.cost.collective_time(…)`"
    )


def test_every_column_of_a_table_has_a_meaning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    written = tmp_path / "columns.md"
    import_module("column_pages").write_columns(written)
    rows = [line for line in written.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [row for row in rows if row.rstrip(" |").count("|") < 3]


def test_every_public_name_has_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    pages = import_module("reference_pages")
    pages.write_reference(tmp_path)
    for module in pages.MODULES:
        for name, _ in pages.public_names(module):
            assert (tmp_path / f"{module}.{name}.md").exists()
