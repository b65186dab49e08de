"""Files are named as a person knows them."""

import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsexplore.capture import source_lines


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "_names", {})


def test_a_file_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_lines.file_name(str(tmp_path / "src" / "train.py")) == "src/train.py"


def test_a_file_of_an_installed_package() -> None:
    file = Path(sysconfig.get_path("purelib")) / "transformers" / "models" / "llama.py"
    assert source_lines.file_name(str(file)) == "transformers/models/llama.py"


def test_a_file_elsewhere_keeps_its_path() -> None:
    assert source_lines.file_name("/elsewhere/train.py") == "/elsewhere/train.py"


def test_a_notebook_cell_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/ipykernel_1/2.py": 7}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert source_lines.file_name("/ipykernel_1/2.py") == "In[7]"


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
