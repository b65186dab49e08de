"""``dsexplore loading``, ``checkpoint``, ``offload`` and ``feeding``: what they print, save and refuse."""

from __future__ import annotations

import argparse
import errno
import json
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from dsexplore._internal.aio.disk_commands import add_output_arguments, show
from dsexplore._internal.cli import main
from dsexplore._internal.errors import UsageError
from tests.aio.test_offload import SWEPT


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_output_arguments(parser)
    return parser.parse_args(words)


def fail() -> NoReturn:
    raise OSError(errno.ENOSPC, "1 GiB is needed", "/full")


def test_a_disk_that_cannot_be_used_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"\[Errno 28\] 1 GiB is needed: '/full'"):
        show(options(), fail)


def test_loading_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.ones(300)}, tmp_path / "model.pt")
    page = tmp_path / "page.html"
    assert main(["loading", str(tmp_path), "--rounds", "1", "--html", str(page)]) == 0
    assert "Load with " in capsys.readouterr().out
    assert "torch.load(mmap=True)" in page.read_text(encoding="utf-8")
    assert main(["loading", str(tmp_path), "--rounds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["call"] for row in rows] == ["torch.load", "torch.load(mmap=True)", "dsexplore.aio.load_file"]


@pytest.mark.parametrize("words", [["nothing"], [".", "--html", "no/folder/page.html"]])
def test_loading_says_what_is_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loading", *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore loading: ")


def test_checkpoint_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_checkpoint_says_what_is_wrong(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore checkpoint: ")


def test_offload_prints_the_verdict_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_offload_says_what_is_wrong(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SWEPT.save(tmp_path / "sweep.json")
    assert main(["offload", str(tmp_path / "sweep.json"), *words]) == 2
    assert capsys.readouterr().err.startswith("dsexplore offload: ")


def test_feeding_takes_a_loader_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("def loader():\n    return [[1, 2]] * 9\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n")
    page = tmp_path / "page.html"
    assert main(["feeding", f"{script}:loader", "--step-seconds", "9", "--html", str(page)]) == 0
    assert "a step does not wait for it" in capsys.readouterr().out
    assert "samples per second" in page.read_text(encoding="utf-8")
    for words in ([f"{script}:other"], ["nothing.py:loader"], [f"{script}:loader", "--html", "no/folder/x.html"]):
        assert main(["feeding", *words]) == 2
        assert capsys.readouterr().err.startswith("dsexplore feeding: ")
