"""The recorder: from the moment a collective is issued to the tables of a `Trace`.

What must hold:

1. nothing is charged to what does not communicate, and a few microseconds to what does;
2. a fault of the recorder's own never ends or changes the program: it is warned of, once;
3. recordings nest, and see all threads of the process; each has its own steps and numbering;
4. no parameter, tensor, model or process group is kept alive after the recording;
5. whatever ends the block, hooks and kernels are removed.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dsexplore.errors import UsageError
from dsexplore.interrupts import uninterrupted
from dsexplore.progress import Work, track
from dsexplore.trace import frames, pipelines, schema
from dsexplore.trace.collectives import wire_bytes
from dsexplore.trace.files import check_destination, save_recording
from dsexplore.trace.groups import Group, Groups, own_rank
from dsexplore.trace.model import Tables, Trace, TraceInfo
from dsexplore.trace.modules import Module, Modules
from dsexplore.trace.registry import Communication
from dsexplore.trace.substrate import Substrate, best_available
from dsexplore.trace.timing import Clock, CudaAnchor, CudaSpan, InFlight, end_at_completion


@dataclass(slots=True, eq=False)
class Event:
    """One message of one collective, as cheap as it can be; strings are made when a table is."""

    op: str
    raw_op: str
    group: Group | None
    message_bytes: int
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    phase: str
    trigger: Module | None
    owner: Module | None
    cause: str
    implicit: bool
    sources: list[frames.Source]
    is_async: bool
    is_object: bool
    batch: int | None
    rank: int
    start: int | None = None
    end: int | None = None
    span: CudaSpan | None = None


@dataclass(eq=False)
class Recording:
    """What one ``with record()`` block has seen so far."""

    stack_depth: int
    simulated: bool
    mesh: str
    earlier_calls: dict[int, int]
    events: list[Event] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Number of events at each `Trace.step`."""
    notes: list[str] = field(default_factory=list)
    work: Work | None = None
    """Who watches it, if anyone does."""

    def add(self, events: list[Event]) -> None:
        """A collective was issued."""
        self.events.extend(events)
        if self.work is not None:
            steps = len(self.steps)
            self.work.advance(len(events), f"in step {steps}" if steps else "")

    def step(self) -> None:
        """Later events belong to the next step."""
        self.steps.append(len(self.events))


class Recorder:
    """One per process: watches while at least one recording is open.

    Args:
        substrate: makes the source of events.
        clock: nanoseconds since the epoch, for start and end.
    """

    def __init__(self, substrate: Callable[[], Substrate] = best_available, clock: Clock = time.time_ns) -> None:
        self._make_substrate = substrate
        self._clock = clock
        self._substrate: Substrate | None = None
        self._recordings: list[Recording] = []
        self._groups = Groups()
        self._modules = Modules()
        self._stack_depth = 1
        self._batches = 0
        self._anchor: CudaAnchor | None = None
        self._in_flight = InFlight()
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    @property
    def active(self) -> bool:
        """Whether anything is being recorded."""
        return bool(self._recordings)

    def open(self, recording: Recording) -> None:
        """Begin to record into it; the first one installs hooks and kernels."""
        with self._lock:
            if not self._recordings:
                self._groups, self._modules, self._warned = Groups(), Modules(), set()
                self._anchor, self._batches = None, 0
                substrate = self._make_substrate()
                try:
                    self._modules.install()
                    substrate.install(self.observe)
                except BaseException:
                    self._modules.uninstall()
                    raise
                self._substrate = substrate
            recording.earlier_calls = self._modules.calls()
            self._recordings.append(recording)
            self._stack_depth = max(each.stack_depth for each in self._recordings)

    def close(self, recording: Recording) -> Tables:
        """End it and return its content; the last one removes everything that was installed."""
        with self._lock:
            self._recordings.remove(recording)
            self._stack_depth = max((each.stack_depth for each in self._recordings), default=1)
            if self._recordings:
                return self.tables(recording)
            try:
                return self.tables(recording)
            finally:
                self._modules.uninstall()
                if self._substrate is not None:
                    self._substrate.uninstall()
                    self._substrate = None
                self._in_flight.release()
                self._groups.release()

    def observe(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Callable[[Any], None] | None:
        """A collective is about to be issued."""
        try:
            events = self._describe(raw_op, entry, args)
        except Exception as fault:
            self._warn(f"{raw_op}", f"dsexplore could not describe {raw_op} and left it out of the trace: {fault!r}")
            return None
        group = events[0].group if events else None
        timing = group.timing if group is not None else "none"
        span = None
        if timing == "cuda":
            span = self._cuda_span()
        elif timing != "none":
            now = self._clock()
            for event in events:
                event.start = now

        def done(result: Any) -> None:
            for recording in self._recordings:
                recording.add(events)
            if span is not None:
                span.watch(result)
                for event in events:
                    event.span = span
            elif timing != "none":
                for event in events:
                    end_at_completion(event, result, self._clock)
                if events:
                    self._in_flight.add(events[-1], result)

        return done

    def _cuda_span(self) -> CudaSpan:
        if self._anchor is None:
            self._anchor = CudaAnchor(self._clock)
        return CudaSpan(self._anchor)

    def _describe(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> list[Event]:
        group = self._group(raw_op, entry, args)
        context = frames.look(self._stack_depth)
        trigger, owner = self._attribute(context)
        if context.mesh is not None:
            self._groups.add_mesh(context.mesh)
        members = list(entry.members(args, group.size if group is not None else 1, entry.op))
        if context.schedule:
            module, context.phase = pipelines.place(context.schedule, members[0][2], members[0][1])
            trigger = self._modules.find(module) if module is not None else None
        batch = self._batch(context.batch, coalesced="coalesced" in raw_op)
        return [
            Event(
                op=op,
                raw_op=raw_op,
                group=group,
                message_bytes=int(size),
                dtype=tensor.dtype if tensor is not None else None,
                shape=tuple(tensor.shape) if tensor is not None else (),
                phase=context.phase,
                trigger=trigger,
                owner=owner or trigger,
                cause=context.cause,
                implicit=context.implicit,
                sources=context.sources,
                is_async=not context.is_blocking and _is_async(entry, args),
                is_object=context.is_object,
                batch=batch,
                rank=group.own_rank if group is not None else own_rank(),
            )
            for size, tensor, op in members
        ]

    def _group(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Group | None:
        if entry.op.startswith("unknown:"):
            self._warn(raw_op, f"dsexplore does not know the communication op {raw_op}: recorded as {entry.op}")
            handle = next((arg for arg in args if _may_be_group(arg)), None)
            if handle is None:
                return None
        else:
            handle = args[entry.group]
        return self._groups.find(handle)

    def _attribute(self, context: frames.Context) -> tuple[Module | None, Module | None]:
        modules = self._modules
        owner = modules.find(context.owner) if context.owner is not None else None
        if context.module is not None:
            trigger: Module | None = modules.find(context.module)
            if trigger is not None and trigger.calls == 0:
                modules.note_node(trigger, context.sources[0] if context.sources else None)
        else:
            trigger, site = modules.of_node(context.node)
            if site is not None:
                context.sources.insert(0, site)  # loss.backward() alone would tell nothing
        if owner is None and context.cause == "DDP gradient bucket":
            owner = modules.wrapper(DistributedDataParallel)
        elif isinstance(context.module, DistributedDataParallel) and not context.cause:
            context.cause = "DDP buffers and bucket order"
        return trigger, owner

    def _batch(self, position: int, coalesced: bool) -> int | None:
        if position == 1 or (coalesced and not position):
            self._batches += 1
        return self._batches if position or coalesced else None

    def switched_off(self, op: str, process_group: Any, switch: str) -> None:
        """A collective that the comm layer suppressed: shown, never counted as traffic."""
        context = frames.look(1)
        trigger, owner = self._attribute(context)
        event = Event(
            op=f"switched_off:{op}",
            raw_op="",
            group=self._groups.find(process_group) if process_group is not None else None,
            message_bytes=0,
            dtype=None,
            shape=(),
            phase=context.phase,
            trigger=trigger,
            owner=owner or trigger,
            cause=f"switched off by {switch}",
            implicit=False,
            sources=context.sources,
            is_async=False,
            is_object=False,
            batch=None,
            rank=own_rank(),
        )
        for recording in self._recordings:
            recording.events.append(event)

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            for recording in self._recordings:
                recording.notes.append(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    @property
    def modules(self) -> Modules:
        """The modules that were met since the first open recording began."""
        return self._modules

    def tables(self, recording: Recording) -> Tables:
        """The recording's content as of now."""
        for mesh in self._modules.meshes():
            self._groups.add_mesh(mesh)
        groups = self._groups.described()
        ranks = sorted({event.rank for event in recording.events})
        initialized = dist.is_initialized()
        if not ranks and initialized:
            ranks = [own_rank()]
        elif not ranks and "RANK" in os.environ:  # started by a launcher, and has no process group yet or no more
            ranks = [int(os.environ["RANK"])]
        used = {id(event.group) for event in recording.events}
        return Tables(
            events=_events_frame(recording),
            parameters=_parameters_frame(self._modules, ranks[0] if ranks else 0),
            modules=_modules_frame(self._modules, recording.earlier_calls),
            groups=_groups_frame([group for group in groups if id(group) in used]),
            info=TraceInfo(
                world_size=_world_size(groups),
                ranks=tuple(ranks),
                mesh=recording.mesh or next((group.mesh for group in groups if group.mesh), ""),
                simulated=recording.simulated or any(group.backend == "fake" for group in groups),
                torch_version=torch.__version__,
                notes=tuple(recording.notes),
            ),
        )


def _world_size(groups: list[Group]) -> int:
    """Ranks of the process group; where there is none, those that the launcher or the groups seen tell."""
    if dist.is_initialized():
        return dist.get_world_size()
    return max([int(os.environ.get("WORLD_SIZE", "1")), *(group.size for group in groups)])


def _may_be_group(arg: Any) -> bool:
    return isinstance(arg, (dist.ProcessGroup, torch.ScriptObject)) and "ProcessGroup" in str(
        arg._type() if isinstance(arg, torch.ScriptObject) else type(arg)
    )


def _is_async(entry: Communication, args: tuple[Any, ...]) -> bool:
    if entry.always_sync:
        return False
    if entry.async_op is None or entry.async_op >= len(args):
        return True
    return bool(args[entry.async_op])


def _events_frame(recording: Recording) -> pl.DataFrame:
    events = recording.events
    steps = _step_numbers(recording)
    for event in events:
        if event.span is not None:
            event.start, event.end = event.span.read()
            event.span = None
    names = {id(module): module.name for event in events for module in (event.trigger, event.owner) if module}
    groups = [event.group for event in events]
    columns: dict[str, list[Any]] = {
        "rank": [event.rank for event in events],
        "step": steps,
        "seq": list(range(len(events))),
        "op": [event.op for event in events],
        "raw_op": [event.raw_op for event in events],
        "phase": [event.phase for event in events],
        "trigger": [names[id(event.trigger)] if event.trigger else "" for event in events],
        "owner": [names[id(event.owner)] if event.owner else "" for event in events],
        "axis": [group.axis if group else "" for group in groups],
        "group": [group.name if group else "" for group in groups],
        "group_size": [group.size if group else 1 for group in groups],
        "message_bytes": [event.message_bytes for event in events],
        "wire_bytes": [
            wire_bytes(event.op, event.message_bytes, event.group.size if event.group else 1) for event in events
        ],
        "dtype": [str(event.dtype).removeprefix("torch.") if event.dtype else "" for event in events],
        "shape": [[int(length) for length in event.shape] for event in events],
        "implicit": [event.implicit for event in events],
        "cause": [event.cause for event in events],
        "source": [frames.source_text(event.sources[: recording.stack_depth]) for event in events],
        "is_async": [event.is_async for event in events],
        "is_object": [event.is_object for event in events],
        "batch": [event.batch for event in events],
        "start": [event.start for event in events],
        "end": [event.end for event in events],
    }
    return pl.DataFrame(columns, schema=schema.EVENTS)


def _step_numbers(recording: Recording) -> list[int]:
    numbers: list[int] = []
    for step, end in enumerate([*recording.steps, len(recording.events)]):
        numbers.extend([step] * (end - len(numbers)))
    return numbers


def _parameters_frame(modules: Modules, rank: int) -> pl.DataFrame:
    rows = [
        (
            rank,
            parameter.module.name,
            f"{parameter.module.name}.{parameter.name}",
            list(parameter.global_shape),
            list(parameter.local_shape),
            parameter.dtype,
            parameter.placements,
            parameter.mesh,
            parameter.global_bytes,
            parameter.local_bytes,
            parameter.requires_grad,
            f"{parameter.shared_with.module.name}.{parameter.shared_with.name}" if parameter.shared_with else "",
        )
        for parameter in modules.parameters()
    ]
    return pl.DataFrame(rows, schema=schema.PARAMETERS, orient="row")


def _modules_frame(modules: Modules, earlier: dict[int, int]) -> pl.DataFrame:
    rows = []
    for module in modules.in_order():
        name = module.name
        is_root = module.root is None
        parent = "" if is_root else name.rpartition(".")[0]
        depth = 0 if is_root else module.path.count(".") + 1
        rows.append((name, parent, module.type, depth, module.calls - earlier.get(id(module), 0)))
    return pl.DataFrame(rows, schema=schema.MODULES, orient="row")


def _groups_frame(groups: list[Group]) -> pl.DataFrame:
    rows = [
        (group.name, group.axis, group.mesh, list(group.ranks), group.size, group.backend, group.timing)
        for group in groups
    ]
    return pl.DataFrame(rows, schema=schema.GROUPS, orient="row")


_recorder = Recorder()


@contextmanager
def record(
    *,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    simulated: bool = False,
    mesh_spec: str = "",
) -> Iterator[Trace]:
    """Record every collective of this process inside the block.

    Args:
        save: a directory, where every rank writes a file when its block ends, also by an exception; or, where only
            one process records, a file such as ``step.parquet``.
        stack_depth: frames of the user's code to keep per event.
        simulated: whether the process group simulates its ranks.
        mesh_spec: the mesh as the user wrote it, ``"dp=2,tp=4"``.

    Yields:
        a `Trace`, readable at any time, final when the block ends. Ctrl-C inside the block leaves it with what was
        recorded until then, saved if it was to be, and the KeyboardInterrupt says so.

    Raises:
        UsageError: a ``stack_depth`` below 1, or a ``save`` that several processes would overwrite.
    """
    if stack_depth < 1:
        raise UsageError(f"stack_depth={stack_depth} keeps no source line: give 1 or more")
    if save is not None:
        check_destination(save)
    recording = Recording(stack_depth, simulated, mesh_spec, {})
    trace = Trace(lambda: _recorder.tables(recording), recording.step)
    inner = _recorder.active
    _recorder.open(recording)
    try:
        with track("tracing", unit="collectives") as work:
            recording.work = None if inner else work
            yield trace
    except BaseException as error:
        recording.notes.append(f"the recording ended early, with {type(error).__name__}")
        _end(recording, trace, save)
        if isinstance(error, KeyboardInterrupt) and not inner:
            error.add_note(
                f"The {len(trace):,} collectives recorded until then are kept in the trace"
                + (f", saved in {os.fspath(save)}." if save is not None else ".")
            )
        raise
    _end(recording, trace, save)


def _end(recording: Recording, trace: Trace, save: str | os.PathLike[str] | None) -> None:
    """Wholly, even where Ctrl-C comes twice, as it does to the processes of a launcher that passes it on."""
    with uninterrupted():
        recording.work = None
        trace.finish(_recorder.close(recording))
        if save is not None:
            save_recording(trace, save)


def is_recording() -> bool:
    """Whether a recording is open in this process."""
    return _recorder.active


def followed() -> list[Module]:
    """The modules that were met while anything is recorded, parents before children."""
    return list(_recorder.modules.in_order())


def running_module() -> Module | None:
    """The module that runs in this thread; in backward, the one whose forward made the running autograd node."""
    return _recorder.modules.running()


def is_in_forward() -> bool:
    """Whether a module's forward runs in this thread, of its own or as recomputation."""
    return _recorder.modules.in_forward()


def note_switched_off(op: str, process_group: Any, comm_switch: str) -> None:
    """Note a collective that the comm layer's switches suppressed, in every open recording."""
    if _recorder.active:
        _recorder.switched_off(op, process_group, comm_switch)
