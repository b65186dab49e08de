"""``dsexplore loading``: what is printed, saved and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dsexplore._internal.cli import main


def test_the_command_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.ones(300)}, tmp_path / "model.pt")
    page = tmp_path / "page.html"
    assert main(["loading", str(tmp_path), "--rounds", "1", "--html", str(page)]) == 0
    assert "Load with " in capsys.readouterr().out
    assert "torch.load(mmap=True)" in page.read_text(encoding="utf-8")
    assert main(["loading", str(tmp_path), "--rounds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["call"] for row in rows] == ["torch.load", "torch.load(mmap=True)", "dsexplore.aio.load_file"]


@pytest.mark.parametrize("words", [["nothing"], [".", "--html", "no/folder/page.html"]])
def test_the_command_says_what_is_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loading", *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore loading: ")
