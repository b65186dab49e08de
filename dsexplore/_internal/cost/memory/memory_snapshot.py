"""Compare a snapshot of torch's allocator with a prediction: what the memory was for at the peak.

``torch.cuda.memory._dump_snapshot`` writes a pickle of plain containers: segments with their blocks, and, where
``_record_memory_history`` was on, what was allocated and freed since, each with the frames of its stack. Reading it
needs neither torch's GPU build nor a GPU; a pickle that names a class or a function is refused.

The use of a block follows from its frames, by the first rule that holds:

| frames | for |
|---|---|
| of ``torch/optim`` | optimizer |
| of ``_fsdp`` or ``_fully_shard``, or of ``torch/distributed`` outside a module | buffers |
| of the autograd engine, and as large as a parameter of the trace | gradients |
| of an ``__init__``, or of ``Module._apply`` | parameters |
| a ``forward`` | activations, of the modules of the trace whose classes have these ``forward``s |
| none of them, or no frames | unknown |
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore._internal.cost.memory.peak_memory import layer_of
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.importers.plain_pickle import load_plain

_MOST_VALUES = 10**9
"""Limit of the values in a snapshot; those that events share, as the frames of stacks, count once per event."""
UNKNOWN = "unknown"
ALLOCATOR_GAPS = "gaps of the allocator"

Frame = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True)
class MemorySnapshot:
    """Memory of one GPU at the peak of allocated bytes in a snapshot's history.

    Attributes:
        device: Index of the GPU.
        allocated: Bytes of the blocks in use.
        reserved: Bytes of the segments that the blocks were cut from.
        blocks: Number of blocks by size in bytes, by stack, innermost frame first; the stack is empty if it was not
            recorded.
        recorded: False if the snapshot has no history; then its own moment counts as the peak.
    """

    device: int
    allocated: int
    reserved: int
    blocks: Mapping[tuple[Frame, ...], Mapping[int, int]]
    recorded: bool

    @property
    def gaps(self) -> int:
        """Bytes that the allocator held and no tensor had."""
        return self.reserved - self.allocated


@names_arguments
def read_memory_snapshot(path: str | os.PathLike[str], device: int | None = None) -> MemorySnapshot:
    """Read the peak of a file that ``torch.cuda.memory._dump_snapshot`` wrote.

    Args:
        path: path of the pickle.
        device: index of the GPU; None for the one with the largest segments.

    Raises:
        UsageError: it cannot be read, is not a snapshot, names a class or a function, or has no such GPU.

    Examples:
        >>> import pickle
        >>> blocks = [{"address": 0, "size": 1 << 20, "state": "active_allocated", "frames": []}]
        >>> segments = [{"device": 0, "address": 0, "total_size": 2 << 20, "blocks": blocks}]
        >>> with open("snapshot.pickle", "wb") as file:
        ...     pickle.dump({"segments": segments, "device_traces": []}, file)
        >>> peak = read_memory_snapshot("snapshot.pickle")
        >>> peak.allocated, peak.reserved, peak.gaps
        (1048576, 2097152, 1048576)
    """
    try:
        content = load_plain(Path(path).read_bytes(), most=_MOST_VALUES)
    except OSError as error:
        raise UsageError(f"the snapshot {path} cannot be read: {error}") from None
    except Exception as error:  # whatever a damaged pickle makes the unpickler raise
        raise UsageError(f"{path} is not a snapshot of torch's allocator: {error}") from None
    try:
        return _peak(content, device)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise UsageError(
            f"{path} is not a snapshot of torch's allocator, as it lacks {error}: write it with "
            "torch.cuda.memory._dump_snapshot"
        ) from None


def _peak(content: Any, device: int | None) -> MemorySnapshot:
    """Return the peak of a GPU, or of the one with the largest segments, in the content of a snapshot."""
    segments, traces = list(content["segments"]), list(content["device_traces"])
    sizes: Counter[int] = Counter()
    for segment in segments:
        sizes[segment.get("device", 0)] += segment["total_size"]
    devices = sorted({*sizes, *(number for number, events in enumerate(traces) if events)})
    if device is None:
        device = max(devices, key=sizes.__getitem__, default=0)
    elif device not in devices:
        raise UsageError(f"the snapshot has no memory of GPU {device}: it has {', '.join(map(str, devices)) or 'none'}")
    events = traces[device] if device < len(traces) else []
    own_segments = [segment for segment in segments if segment.get("device", 0) == device]
    return _AllocatorHistory(own_segments, events).peak(device)


class _AllocatorHistory:
    """Replays the events of a snapshot, from the blocks that were in use before them.

    Args:
        segments: segments of one GPU after the last event.
        events: events of the same GPU, in order.
    """

    def __init__(self, segments: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> None:
        self._events = events
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        in_use = {}
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                place = block.get("address", address)
                if block["state"] == "active_allocated":
                    in_use[place] = (block["size"], self._stack(_frames_of(block)))
                address += block["size"]
        self._reserved = sum(segment["total_size"] for segment in segments)
        self._before = in_use
        for event in reversed(events):  # undone, the last one first
            action, place = event["action"], event["addr"]
            if action == "alloc":
                self._before.pop(place, None)
            elif action == "free_requested":
                self._before[place] = (event["size"], ())
            elif action in _SEGMENTS:
                self._reserved -= _SEGMENTS[action] * event["size"]

    def peak(self, device: int) -> MemorySnapshot:
        """Return the memory at the moment when most was allocated."""
        live, reserved = dict(self._before), self._reserved
        now = sum(size for size, _ in live.values())
        most, at, reserved_at_most = now, 0, reserved
        for number, event in enumerate(self._events, start=1):
            change, reserved = self._applied(event, live, reserved)
            now += change
            if now > most:
                most, at, reserved_at_most = now, number, reserved
        live, reserved = dict(self._before), self._reserved
        for event in self._events[:at]:
            _, reserved = self._applied(event, live, reserved)
        blocks: dict[tuple[Frame, ...], Counter[int]] = {}
        for size, stack in live.values():
            blocks.setdefault(stack, Counter())[size] += 1
        return MemorySnapshot(
            device,
            allocated=most,
            reserved=max(reserved_at_most, most),
            blocks=blocks,
            recorded=bool(self._events),
        )

    def _applied(
        self, event: Mapping[str, Any], live: dict[int, tuple[int, tuple[Frame, ...]]], reserved: int
    ) -> tuple[int, int]:
        """Apply an event to the live blocks; return by how much these grow, and what is reserved afterwards."""
        action, place, size = event["action"], event["addr"], event["size"]
        if action == "alloc":
            live[place] = (size, self._stack(event.get("frames") or ()))
            return size, reserved
        if action == "free_requested":
            freed = live.pop(place, None)
            return -freed[0] if freed is not None else 0, reserved
        return 0, reserved + _SEGMENTS.get(action, 0) * size

    def _stack(self, frames: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
        """Return a stack as names and numbers; events that share a list of frames share it, too."""
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = tuple(
                (str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in frames
            )
        return self._stacks[id(frames)]


_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""By how much what is reserved grows, by the action of an event."""


def _frames_of(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the frames of a block; files of torch before 2.1 have them in its history."""
    history: Sequence[Mapping[str, Any]] = block.get("history") or ({},)
    return block.get("frames") or history[0].get("frames") or ()


@names_arguments
def beside_snapshot(prediction: Prediction, snapshot: MemorySnapshot | str | os.PathLike[str]) -> pl.DataFrame:
    """Return predicted and allocated bytes by use, the largest first.

    Args:
        prediction: prediction of the program.
        snapshot: snapshot of one of the program's GPUs, or the path of its file.

    Returns:
        One row per use, as in `MemoryNeed.causes`; columns ``what``, and ``predicted`` and ``allocated`` bytes, each at
            its own peak. Blocks whose frames do not show a use are in the row ``unknown``. The last two rows are the
            gaps of the allocator, and what is outside of it.

    Raises:
        UsageError: The file cannot be read, is not a snapshot, or names a class or a function.

    Examples:
        >>> with dsexplore.commtrace(mesh="dp=4", costs=True) as trace:
        ...     dist.all_reduce(torch.ones(256))
        ...     trace.step()
        >>> snapshot = MemorySnapshot(0, allocated=512, reserved=2 << 20, blocks={(): {512: 1}}, recorded=True)
        >>> beside_snapshot(trace.predict("h100"), snapshot).filter(what="unknown")["allocated"].item()
        512
    """
    peak = snapshot if isinstance(snapshot, MemorySnapshot) else read_memory_snapshot(snapshot)
    measured = _bytes_by_use(peak, prediction)
    measured[ALLOCATOR_GAPS] = peak.gaps
    memory = prediction.memory
    predicted = dict(memory.causes.iter_rows())
    predicted[ALLOCATOR_GAPS] = memory.most - memory.outside - int(memory)
    last = ("", UNKNOWN, ALLOCATOR_GAPS, "outside the allocator")

    def order(what: str) -> tuple[int, int, str]:
        largest = max(predicted.get(what, 0), measured.get(what, 0))
        return last.index(what) if what in last else 0, -largest, what

    uses = sorted({*predicted, *measured}, key=order)
    rows = [(what, predicted.get(what), measured.get(what)) for what in uses]
    return pl.DataFrame(rows, schema={"what": pl.String, "predicted": pl.Int64, "allocated": pl.Int64}, orient="row")


def _bytes_by_use(snapshot: MemorySnapshot, prediction: Prediction) -> Counter[str]:
    """Return the allocated bytes by use, activations by the modules that keep them."""
    tables = prediction.tables
    parameter_sizes = {_rounded(size) for size in tables.parameters["local_bytes"].to_list()}
    layers = _Layers(dict(tables.modules.select("module", "type").unique().iter_rows()))
    bytes_by_use: Counter[str] = Counter()
    for stack, blocks in snapshot.blocks.items():
        for size, count in blocks.items():
            bytes_by_use[_use(stack, size in parameter_sizes, layers)] += size * count
    return bytes_by_use


def _rounded(size: int) -> int:
    """Return the size of the block for a tensor: a multiple of 512 bytes."""
    return -(-size // 512) * 512


def _use(stack: Sequence[Frame], like_parameter: bool, layers: _Layers) -> str:
    """Return the use of a block by the rules at the top of this module; like_parameter: it is as large as one."""
    files = [file.replace("\\", "/") for file, _, _ in stack]
    names = [name for _, _, name in stack]
    if any("/torch/optim/" in file for file in files):
        return "optimizer"
    if any("fsdp" in file or "_fully_shard" in file for file in files):
        return "buffers"
    if any("/torch/distributed/" in file for file in files) and "forward" not in names:
        return "buffers"
    if "_engine_run_backward" in names:
        return "gradients" if like_parameter else "activations"
    if "forward" in names:
        layer = layers.of(stack)
        return f"activations of {layer}" if layer else "activations"
    if "__init__" in names or "_apply" in names:
        return "parameters"
    return UNKNOWN


class _Layers:
    """Finds the module of a trace that a stack ran in, by the classes of its ``forward``s; repeated layers are one.

    Args:
        types: name of the class of each module, by the module's path.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._chains = {module: tuple(_classes_down_to(module, types)) for module in types}
        self._layer_of_classes: dict[tuple[str, ...], str] = {}

    def of(self, stack: Sequence[Frame]) -> str:
        """Return the layer of the innermost module; empty if its classes are unknown, or in more than one layer."""
        classes = tuple(
            name for file, line, function in reversed(stack) if function == "forward" and (name := class_at(file, line))
        )
        if classes not in self._layer_of_classes:
            here = {layer_of(module) for module, chain in self._chains.items() if classes and _ends(chain, classes)}
            self._layer_of_classes[classes] = here.pop() if len(here) == 1 else ""
        return self._layer_of_classes[classes]


def _classes_down_to(module: str, types: Mapping[str, str]) -> Iterator[str]:
    """Yield the class names of a module's parents, the root's first, and its own, all as before ``fully_shard``."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        class_name = types.get(".".join(parts[:count]))
        if class_name is not None:
            yield class_name.removeprefix("FSDP")


def _ends(chain: Sequence[str], classes: Sequence[str]) -> bool:
    """Return True if the classes are a subsequence of the chain, and both end with the same class."""
    remaining = iter(chain)
    return chain[-1] == classes[-1] and all(name in remaining for name in classes)


@lru_cache(maxsize=64)
def _classes_of(file: str) -> tuple[tuple[int, int, str], ...]:
    """Return first and last line and name of each class of a file; none if it cannot be read."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return tuple((node.lineno, node.end_lineno or node.lineno, node.name) for node in classes)


def class_at(file: str, line: int) -> str:
    """Return the innermost class around a line of a source file; empty without one, or without the file."""
    around = [(end - begin, name) for begin, end, name in _classes_of(file) if begin <= line <= end]
    return min(around)[1] if around else ""
