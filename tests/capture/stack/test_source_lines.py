"""Files are named as a person knows them."""

import sys
import sysconfig
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from dsexplore._internal.capture.stack import source_lines
from dsexplore._internal.worlds.simulate import simulate


def test_a_file_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_lines.file_name(str(tmp_path / "src" / "train.py")) == "src/train.py"


def test_a_file_of_an_installed_package() -> None:
    file = Path(sysconfig.get_path("purelib")) / "transformers" / "models" / "llama.py"
    assert source_lines.file_name(str(file)) == "transformers/models/llama.py"


def test_a_file_elsewhere_keeps_its_path() -> None:
    assert source_lines.file_name("/elsewhere/train.py") == "/elsewhere/train.py"


def test_a_notebook_cell_is_known_by_the_number_it_has_now(shell: InteractiveShell) -> None:
    def run(cell: str) -> None:
        assert shell.run_cell(cell, store_history=True).success

    sending = "with record() as trace:\n    1\n    dist.all_reduce(torch.ones(2))"
    with simulate(world_size=4):
        run("import torch, torch.distributed as dist\nfrom dsexplore._internal.capture.record import record")
        for number in (2, 3, 4):
            run(sending)
            assert shell.user_ns["trace"].events["source"].to_list() == [f"In[{number}]:3"]


def test_the_line_a_frame_stands_at() -> None:
    here = sys._getframe()
    places = [(here.f_code, here.f_lasti)]
    places.append((here.f_code, here.f_lasti))
    first = here.f_lineno - 2
    name = source_lines.file_name(__file__)
    assert source_lines.source_texts([(places[0],), (), (places[1], places[0])]) == [
        f"{name}:{first}",
        "",
        f"{name}:{first + 1} ← {name}:{first}",
    ]
