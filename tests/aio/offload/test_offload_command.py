"""``dsexplore offload``: what is printed and refused, from a saved sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsexplore._internal.cli import main
from tests.aio.offload.test_offload_plan import SWEPT


def test_the_command_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SWEPT.save(tmp_path / "sweep.json")
    page = tmp_path / "page.html"
    words = ["offload", str(tmp_path / "sweep.json"), "--parameters", "8.03e9", "--step-seconds", "5"]
    assert main([*words, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8.03e9 parameters, 8,030,000,000 parameters per node, states on ext4 on /dev/nvme0n1")
    assert "Swapping optimizer states makes a step 31.3 s longer" in text
    assert "waiting for optimizer states" in page.read_text(encoding="utf-8")
    assert main([*words, "--swap-parameters", "--json"]) == 0
    assert [row["what"] for row in json.loads(capsys.readouterr().out)] == ["optimizer states", "parameters"]


@pytest.mark.parametrize("words", [["--parameters", "some"], ["--tokens", "0"], ["--html", "no/folder/page.html"]])
def test_the_command_says_what_is_wrong(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SWEPT.save(tmp_path / "sweep.json")
    assert main(["offload", str(tmp_path / "sweep.json"), *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore offload: ")
