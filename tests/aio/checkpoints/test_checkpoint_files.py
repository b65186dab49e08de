"""Which files a checkpoint consists of, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dsexplore._internal.aio.checkpoints.checkpoint_files import find_checkpoint, first_files
from dsexplore._internal.errors import UsageError
from tests.aio.checkpoints.conftest import FORMATS, State


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [("safetensors", "safetensors", 1), ("shards", "safetensors", 2), ("old torch.save", "torch.save", 1)],
)
def test_a_file_and_its_folder_are_the_same_checkpoint(
    name: str, kind: str, count: int, state: State, tmp_path: Path
) -> None:
    path = FORMATS[name](state, tmp_path / "saved")
    found, of_folder = find_checkpoint(path), find_checkpoint(path.parent)
    assert (found.kind, len(found.files)) == (kind, count)
    assert (of_folder.files, of_folder.sizes) == (found.files, found.sizes)


def test_the_name_of_a_file_does_not_matter(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "weights.safetensors")
    save_file(state, tmp_path / "weights.bin")
    assert find_checkpoint(tmp_path / "weights.safetensors").kind == "torch.save"
    assert find_checkpoint(tmp_path / "weights.bin").kind == "safetensors"


def test_the_first_shards_stand_for_all(state: State, tmp_path: Path) -> None:
    whole = find_checkpoint(FORMATS["shards"](state, tmp_path / "saved"))
    assert first_files(whole, whole.nbytes) == whole
    part = first_files(whole, whole.nbytes - 1)
    assert (part.files, part.left_out) == (whole.files[:1], 1)
    assert first_files(whole, 0).files == whole.files[:1]


def test_a_folder_of_the_distributed_checkpoint_stays_whole(state: State, tmp_path: Path) -> None:
    whole = find_checkpoint(FORMATS["DCP"](state, tmp_path / "saved"))
    assert whole.kind == "DCP"
    assert first_files(whole, 0) == whole


def _without_a_shard(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-1.safetensors"}}), encoding="utf-8")
    return index


def _file(name: str, content: str) -> object:
    return lambda folder: ((folder / name).write_text(content, encoding="utf-8"), folder / name)[1]


def _several(folder: Path) -> Path:
    torch.save({}, folder / "a.pt")
    torch.save({}, folder / "b.pt")
    return folder


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda folder: folder / "nothing", FileNotFoundError, "there is no such file"),
        (lambda folder: folder, UsageError, "holds no checkpoint"),
        (_without_a_shard, FileNotFoundError, "model-1.safetensors"),
        (_file("a.index.json", "[]"), UsageError, "not an index of shards"),
        (_file("notes.txt", "hello"), UsageError, "not a checkpoint that is known"),
        (_several, UsageError, r"several checkpoints \(a.pt, b.pt\)"),
    ],
)
def test_what_is_no_checkpoint_is_refused(make: object, error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        find_checkpoint(make(tmp_path))  # type: ignore[operator]
