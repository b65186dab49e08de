"""``dsexplore checkpoint``: what is printed and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsexplore._internal.cli import main


def test_the_command_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    words = ["checkpoint", str(tmp_path), "--parameters", "8B", "--world-size", "64", "--size", "4MiB"]
    assert main([*words, "--state-dtype", "float32", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("checkpoints of 8B parameters, 74.5 GiB on 64 ranks, to ")
    assert "Save with " in text
    assert "DCP" in page.read_text(encoding="utf-8")
    assert main([*words, "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)][:2] == ["torch.save", "DCP"]


@pytest.mark.parametrize(
    "words",
    [["--parameters", "many"], ["--world-size", "0"], ["--state-dtype", "f"], ["--size", "1"], ["--dtype", "f"]],
)
def test_the_command_says_what_is_wrong(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore checkpoint: ")
