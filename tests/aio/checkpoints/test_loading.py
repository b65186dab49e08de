"""`loading`: each call fills the parameters with what was saved, and its clock is read at the right places.

Modules: ``aio/checkpoints/loading.py``, ``aio/checkpoints/loaders.py``, ``aio/checkpoints/saved_formats.py``.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from dsexplore import aio
from dsexplore.aio.checkpoints import loading as loading_module
from dsexplore.aio.checkpoints import saved_formats
from dsexplore.aio.checkpoints.checkpoint_files import find_checkpoint
from dsexplore.aio.checkpoints.loaders import loaders_of, new_targets
from dsexplore.aio.checkpoints.loading import _measure, load_once
from dsexplore.errors import UsageError
from tests.aio.checkpoints.conftest import FORMATS, State

pytestmark = pytest.mark.usefixtures("open_files")


def test_each_call_fills_the_parameters(saved: Path, state: State) -> None:
    checkpoint = find_checkpoint(saved)
    for loader in loaders_of(checkpoint):
        targets = new_targets(checkpoint)
        load_once(loader, checkpoint, targets, lambda: 0.0)
        for name, tensor in targets.items():
            assert torch.equal(
                tensor, state[{"exp_avg": "weight"}.get(name.rpartition(".")[2], name.rpartition(".")[2])]
            )


def test_times_are_those_of_the_clock(saved: Path) -> None:
    """Of a clock that ticks at each look: one tick per call of a file and one per copy, whatever the format."""
    ticks = count()
    checkpoint = find_checkpoint(saved)
    (times,) = _measure("saved", [checkpoint], 2, lambda: float(next(ticks))).measured
    files = 1 if checkpoint.kind == "DCP" else len(checkpoint.files)
    for each in times.loaders:
        assert [(one.call, one.fill) for one in (*each.cold, *each.warm)] == [(files, files)] * 4
    assert times.limit == (checkpoint.nbytes,) * 2
    assert times.disk_seconds == 1


def test_the_calls_are_those_that_people_use(state: State, tmp_path: Path) -> None:
    names = {
        name: [each.name for each in loaders_of(find_checkpoint(save(state, tmp_path / name)))]
        for name, save in FORMATS.items()
    }
    assert names["safetensors"][0] == "safetensors.torch.load_file"
    assert names["torch.save"] == ["torch.load", "torch.load(mmap=True)", "dsexplore.aio.load_file"]
    assert names["old torch.save"] == ["torch.load", "dsexplore.aio.load_file"]  # it cannot be mapped
    assert names["DCP"] == ["torch.distributed.checkpoint.load"]


def test_a_model_is_saved_in_each_format_and_removed(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    model.tied = model.weight
    found = aio.loading(model, tmp_path, repeats=1)
    assert [times.checkpoint.kind for times in found.measured] == ["safetensors", "torch.save", "DCP"]
    assert list(tmp_path.iterdir()) == []
    assert found.title == "Linear"


def test_without_safetensors_its_files_load_nevertheless(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FORMATS["safetensors"](state, tmp_path / "saved")
    for module in (loading_module.loaders_of.__globals__, vars(saved_formats)):
        monkeypatch.setitem(module, "find_spec", lambda name: None)
    found = aio.loading(path, repeats=1)
    assert [each.name for each in found["safetensors"].loaders] == ["dsexplore.aio.load_file"]
    assert any("pip install 'dsexplore[checkpoints]'" in line for line in found.lines())


def test_shards_that_are_left_out_are_said(state: State, tmp_path: Path) -> None:
    found = aio.loading(FORMATS["shards"](state, tmp_path / "saved"), repeats=1, most=1)
    assert any(line.startswith("Of 2 shards, the first 1 were read") for line in found.lines())


class Other:
    """Something that no unpickler of plain values knows."""


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (torch.nn.Identity(), {}, "holds nothing"),
        (torch.nn.Linear(2, 2, device="meta"), {}, "meta device"),
        (3, {}, "neither a path nor a model"),
        ("saved.pt", {"repeats": 0}, "repeats 0"),
        ("saved.pt", {"repeats": 1.5}, r"repeats 1\.5"),
        ({"a": Other()}, {}, "more than tensors and plain values"),
        ({"a": 3}, {}, "holds no tensors"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    given: object, options: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(given, dict):
        torch.save(given, tmp_path / "saved.pt")
        given = tmp_path / "saved.pt"
    with pytest.raises(UsageError, match=said):
        aio.loading(given, tmp_path, **options)  # type: ignore[arg-type]


def test_what_does_not_fit_into_memory_is_refused(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FORMATS["torch.save"](state, tmp_path / "saved")
    monkeypatch.setattr(loading_module, "free_memory", lambda: path.stat().st_size * 2)
    with pytest.raises(UsageError, match="give most= for shards"):
        aio.loading(path)
