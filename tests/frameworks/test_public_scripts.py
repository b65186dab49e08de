"""The table of public scripts, and the page that is made of it.

Modules: none of the package.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "benchmarks" / "data" / "public_scripts.toml").read_text(encoding="utf-8"))["script"]
PAGE = (ROOT / "docs" / "public_scripts.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script['repository']} {script['path']}")
def test_each_script_has_a_commit_and_a_sum_that_says_what_it_adds_up(script: dict[str, str]) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", script["repository"])
    assert re.fullmatch(r"[0-9a-f]{8}", script["commit"])
    assert re.fullmatch(r"[\d_ ()+*/-]*", script.get("bytes", ""))
    assert script.get("form") or not script.get("bytes")
    assert f"`{script['path']}`" in PAGE or f" {script['path']}" in PAGE


def test_the_page_counts_its_rows() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| [")]
    counted = re.search(r"(\d+) scripts of (\d+) repositories run; (\d+) have a closed form", PAGE.replace("\n", " "))
    assert counted
    repositories = {line.split("](")[0] for line in rows}
    assert [int(number) for number in counted.groups()] == [
        len(rows),
        len(repositories),
        sum("none known" not in line for line in rows),
    ]


def test_the_page_says_how_many_of_those_that_can_run_do() -> None:
    text = PAGE.replace("\n", " ")
    tried = re.search(r"Tried were (\d+) scripts.* (\d+) of them need .* of the other (\d+), (\d+) run: (\d+) %", text)
    assert tried
    count, lacking, possible, ran, percent = map(int, tried.groups())
    assert (count, lacking) == (len(SCRIPTS), sum("needs" in script for script in SCRIPTS))
    assert possible == count - lacking
    assert ran == sum(line.startswith("| [") for line in PAGE.splitlines())
    assert percent == 100 * ran // possible >= 90
    assert text.count(" - `") == count - ran
