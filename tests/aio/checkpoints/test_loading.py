"""`loading`: each call fills the parameters with what was saved, and its clock is read at the right places.

Modules: ``aio/checkpoints/loading.py``, ``aio/checkpoints/loaders.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from dsexplore import aio
from dsexplore._internal.aio.checkpoints import checkpoint_files
from dsexplore._internal.aio.checkpoints import loading as loading_module
from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint, find_checkpoint
from dsexplore._internal.aio.checkpoints.loaders import Loader, loaders_of, new_targets, tensors_in
from dsexplore._internal.aio.checkpoints.loading import _measure, load_once
from dsexplore._internal.errors import UsageError
from tests.aio.checkpoints.conftest import FORMATS, State
from tests.programs import printed

resource = pytest.importorskip("resource", reason="this system does not count page faults")
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
    """Count ticks of the clock: one per call of a file and one per copy, in each format."""
    ticks = count()
    checkpoint = find_checkpoint(saved)
    (times,) = _measure("saved", [checkpoint], 2, lambda: float(next(ticks))).measured
    files = 1 if checkpoint.kind == "DCP" else len(checkpoint.files)
    for each in times.loaders:
        assert [(one.call, one.fill) for one in (*each.cold, *each.warm)] == [(files, files)] * 4
    assert times.limit == (checkpoint.nbytes,) * 2
    assert times.disk_seconds == 1


def test_a_file_is_freed_before_its_time_is_taken_and_the_next_is_loaded(state: State, tmp_path: Path) -> None:
    """Give memory back within the timed load, and hold one of two shards at a time."""
    checkpoint = find_checkpoint(FORMATS["shards"](state, tmp_path / "saved"))
    loaded: list[weakref.ref[torch.Tensor]] = []

    def load(checkpoint: Checkpoint, targets: State) -> Iterator[Mapping[str, object]]:
        for file in checkpoint.files:
            assert [ref for ref in loaded if ref() is not None] == []
            content = [load_file(file)]
            loaded.extend(weakref.ref(tensor) for tensor in content[0].values())
            yield content.pop()

    alive: list[int] = []

    def clock() -> float:
        alive.append(sum(ref() is not None for ref in loaded))
        return 0.0

    load_once(Loader("watched", load), checkpoint, new_targets(checkpoint), clock)
    counts = alive[1:]  # after the call and after the copies of each file
    assert len(loaded) > len(checkpoint.files) == 2
    assert all(counts[0::2])
    assert counts[1::2] == [0, 0]


@pytest.mark.parametrize("name", ["safetensors", "torch.save", "DCP", "shards"])
def test_a_load_takes_the_memory_that_the_librarys_own_call_takes(name: str, tmp_path: Path) -> None:
    """Count touched pages in another process, since malloc keeps pages of earlier tests."""
    by_hand, ours = map(
        int, printed(f"from {__name__} import faults\nprint(*faults({name!r}, {str(tmp_path)!r}))").split()
    )
    assert by_hand > 0
    assert abs(ours - by_hand) <= max(by_hand // 20, 64)


def test_each_load_takes_new_memory_whatever_malloc_kept(tmp_path: Path) -> None:
    """Tensors of 8 MiB come from the heap, whose free pages a later load would reuse: with a clock of touched pages."""
    each = printed(f"from {__name__} import touched\nprint(*touched({str(tmp_path)!r}))").split()
    assert min(map(int, each)) > 0.9 * max(map(int, each))


def touched(folder: str) -> list[int]:
    """Return how many pages each ``torch.load`` of a measurement touches that it has not yet."""
    many = {f"weight{number}": torch.ones(2 << 20) for number in range(6)}
    checkpoint = find_checkpoint(FORMATS["torch.save"](many, Path(folder) / "saved"))
    kept = [torch.ones(2 << 20) for _ in range(12)]  # malloc keeps pages once tensors were freed below a held one
    del kept[:11]
    (times,) = _measure("", [checkpoint], 3, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt).measured
    loader = times.loaders[0]
    return [int(one.call) for one in (*loader.cold, *loader.warm)]


def faults(name: str, folder: str) -> tuple[int, int]:
    """Return how many pages a load touches that it has not yet: of the library's own call, and of ours."""
    big = {key: torch.ones(9 << 20) for key in ("weight", "bias")}  # each large enough to be mapped by malloc
    checkpoint = find_checkpoint(FORMATS[name](big, Path(folder) / "saved"))
    targets = new_targets(checkpoint)
    loader = loaders_of(checkpoint)[0]
    own = own_call_of(name, checkpoint)

    def faults_of(load: Callable[[], object]) -> int:
        load()  # imports, and memory that the allocator keeps
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        load()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return (
        faults_of(lambda: own(targets)),
        faults_of(lambda: load_once(loader, checkpoint, targets, lambda: 0.0)),
    )


def own_call_of(name: str, checkpoint: Checkpoint) -> Callable[[State], object]:
    """Return what a program without this package does: load, and copy into its parameters."""

    def fill(targets: State, loaded: object) -> None:
        for key, tensor in tensors_in(loaded):
            targets[key].copy_(tensor)

    def by_file(load: Callable[[Path], object]) -> Callable[[State], None]:
        def own(targets: State) -> None:
            for file in checkpoint.files:
                fill(targets, load(file))

        return own

    if name == "DCP":
        return lambda targets: dcp.load(dict(targets), checkpoint_id=checkpoint.path, no_dist=True)
    if name == "torch.save":
        return by_file(lambda file: torch.load(file, map_location="cpu", weights_only=True))
    return by_file(load_file)


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
    found = aio.loading(model, tmp_path, rounds=1)
    assert [times.checkpoint.kind for times in found.measured] == ["safetensors", "torch.save", "DCP"]
    assert list(tmp_path.iterdir()) == []
    assert found.title == "Linear"


def test_without_safetensors_its_files_load_nevertheless(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FORMATS["safetensors"](state, tmp_path / "saved")
    for module in (loading_module.loaders_of.__globals__, vars(checkpoint_files)):
        monkeypatch.setitem(module, "find_spec", lambda name: None)
    found = aio.loading(path, rounds=1)
    assert [each.name for each in found["safetensors"].loaders] == ["dsexplore.aio.load_file"]
    assert any("pip install 'dsexplore[checkpoints]'" in line for line in found.lines())


def test_shards_that_are_left_out_are_said(state: State, tmp_path: Path) -> None:
    found = aio.loading(FORMATS["shards"](state, tmp_path / "saved"), rounds=1, max_read=1)
    assert any(line.startswith("Of 2 shards, the first 1 were read") for line in found.lines())


class Other:
    """Something that no unpickler of plain values knows."""


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (torch.nn.Identity(), {}, "holds nothing"),
        (torch.nn.Linear(2, 2, device="meta"), {}, "meta device"),
        (3, {}, "neither a path nor a model"),
        ("saved.pt", {"rounds": 0}, "rounds 0"),
        ("saved.pt", {"rounds": 1.5}, r"rounds 1\.5"),
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
    with pytest.raises(UsageError, match="give max_read= for shards"):
        aio.loading(path)
