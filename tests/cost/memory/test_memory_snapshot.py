"""Snapshots of torch's allocator: its history played back, what blocks were for, and pickles that are none."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.optim import adamw

from dsexplore import UsageError
from dsexplore._internal.cost.memory.memory_snapshot import ALLOCATOR_GAPS, UNKNOWN, class_at
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds import demo
from dsexplore.cost import beside_snapshot, read_memory_snapshot

MIB = 1 << 20


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Frames as torch writes them, innermost first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in lines]


def forward_of(cls: type) -> tuple[str, int, str]:
    """Return a frame in the forward of a class."""
    code = cls.forward.__code__  # type: ignore[attr-defined] # of a module
    return code.co_filename, code.co_firstlineno + 1, "forward"


ENGINE = ("/x/torch/autograd/graph.py", 800, "_engine_run_backward")
LOOP = ("train.py", 30, "<module>")
STATE = frames((inspect.getfile(adamw), 150, "_init_group"), LOOP)
ATTENTION = frames(forward_of(demo.Attention), forward_of(demo.Block), forward_of(demo.Llama), LOOP)
BACKWARD = frames(("/x/torch/autograd/graph.py", 10, "backward"), ENGINE, LOOP)


def event(action: str, address: int, size: int, stack: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": stack or []}


def snapshot() -> dict[str, Any]:
    """Return a GPU that held 8 MiB before its history, then 4 MiB of states and, at its peak, 16 MiB of activations."""
    blocks = [
        {"address": 0, "size": 8 * MIB, "requested_size": 8 * MIB, "state": "active_allocated", "frames": []},
        {"address": 8 * MIB, "size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_allocated", "frames": STATE},
        {"address": 12 * MIB, "size": 8 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    first = {"device": 0, "address": 0, "total_size": 20 * MIB, "stream": 0, "blocks": blocks}
    place = 64 * MIB
    events = [
        event("alloc", 8 * MIB, 4 * MIB, STATE),
        event("segment_alloc", place, 20 * MIB),
        event("alloc", place, 16 * MIB, ATTENTION),
        event("alloc", place + 16 * MIB, 2 * MIB, BACKWARD),
        event("free_requested", place, 16 * MIB),
        event("free_completed", place, 16 * MIB),
        event("alloc", 12 * MIB, MIB, ATTENTION),
        event("free_requested", 12 * MIB, MIB),
        event("free_completed", 12 * MIB, MIB),
        event("free_requested", place + 16 * MIB, 2 * MIB),
        event("free_completed", place + 16 * MIB, 2 * MIB),
        event("segment_free", place, 20 * MIB),
    ]
    return {"segments": [first], "device_traces": [events, []], "allocator_settings": {}, "external_annotations": []}


def written(folder: Path, content: object) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def test_the_history_is_played_back_to_its_peak(tmp_path: Path) -> None:
    peak = read_memory_snapshot(written(tmp_path, snapshot()))
    assert (peak.device, peak.recorded) == (0, True)
    assert peak.allocated == (8 + 4 + 16 + 2) * MIB
    assert (peak.reserved, peak.gaps) == (40 * MIB, 10 * MIB)
    assert sum(size * count for sizes in peak.blocks.values() for size, count in sizes.items()) == peak.allocated


def test_without_history_it_is_the_memory_at_the_end(tmp_path: Path) -> None:
    peak = read_memory_snapshot(written(tmp_path, snapshot() | {"device_traces": []}))
    assert (peak.allocated, peak.reserved, peak.recorded) == (12 * MIB, 20 * MIB, False)


def test_allocated_and_predicted_memory_stand_side_by_side(tmp_path: Path, traced_llama: Callable[..., Trace]) -> None:
    prediction = traced_llama("dp=4,tp=2").predict()
    frame = beside_snapshot(prediction, written(tmp_path, snapshot()))
    rows = {what: (predicted, allocated) for what, predicted, allocated in frame.iter_rows()}
    layer = next(what for what in rows if what.startswith("activations of ") and what.endswith(".layers.*"))
    assert rows[layer][1] == 16 * MIB
    assert rows[layer][0] > 0
    assert rows["optimizer"][1] == 4 * MIB
    assert rows[UNKNOWN] == (None, 8 * MIB)  # allocated before its frames were recorded
    assert rows[ALLOCATOR_GAPS][1] == 10 * MIB
    memory = prediction.memory
    assert sum(size for size, _ in rows.values() if size) == pytest.approx(memory.most, rel=1e-6)
    assert sum(size for _, size in rows.values() if size) == 40 * MIB
    backward = {"activations", "gradients"} & rows.keys()
    assert sum(rows[what][1] or 0 for what in backward) == 2 * MIB


def test_what_is_as_large_as_a_parameter_in_backward_is_a_gradient(
    tmp_path: Path, traced_llama: Callable[..., Trace]
) -> None:
    trace = traced_llama("dp=4,tp=2")
    size = int(trace.tables.parameters["local_bytes"].max())  # type: ignore[arg-type] # there are some
    content = {"segments": [], "device_traces": [[event("alloc", 0, -(-size // 512) * 512, BACKWARD)]]}
    frame = beside_snapshot(trace.predict(), written(tmp_path, content))
    assert frame.filter(what="gradients")["allocated"].item() == -(-size // 512) * 512


def test_a_class_is_found_by_its_line() -> None:
    file, line, _ = forward_of(demo.Attention)
    assert class_at(file, line) == "Attention"
    assert class_at(file, 1) == ""
    assert class_at("/nowhere/model.py", 1) == ""


class Runs:
    """An object whose pickle would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"segments": [Runs()], "device_traces": []}, "names .*mkdir, and plain data names nothing"),
        ({"segments": []}, "lacks 'device_traces'"),
        ({"segments": [{"total_size": 1, "address": 0}], "device_traces": []}, "lacks 'blocks'"),
        ([1, 2], "is not a snapshot of torch's allocator"),
        ({"segments": [None], "device_traces": []}, "is not a snapshot of torch's allocator"),
        ({"segments": [], "device_traces": [[event("alloc", 0, 1, frames(("a", "x", "b")))]]}, "is not a snapshot"),
    ],
)
def test_other_pickles_are_refused_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        read_memory_snapshot(written(tmp_path, content))
    assert not (tmp_path / "ran").exists()


def test_a_gpu_that_the_snapshot_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no memory of GPU 3: it has 0"):
        read_memory_snapshot(written(tmp_path, snapshot()), device=3)
    with pytest.raises(UsageError, match="cannot be read"):
        read_memory_snapshot(tmp_path / "none.pickle")
