"""The columns of a trace's tables.

Names are the same in Python, in files and in views. *axis* is a mesh axis, *group* a process group, *rank* a global
rank. Sizes are bytes; times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import polars as pl

FORMAT_VERSION = 8

Phase = Literal[
    "start-up", "forward", "no-grad forward", "between steps", "backward", "recompute", "optimizer", "other"
]
"""The part of a step in which an event was issued, see `docs/steps.md`.

``between steps``: state dicts, whole parameters gathered to be saved or passed on, what follows the last step once,
and the order of the buckets, which DDP sends once. ``no-grad forward``: inside a call of an outermost module that began
with gradients off, such as an evaluation, a teacher or a rollout, if the recording also has calls with gradients. What
the program itself sends after such a call, such as an evaluation's metric, is of this phase until the program computes
something differentiable."""
PHASES: tuple[Phase, ...] = get_args(Phase)
OUTSIDE_STEPS: tuple[Phase, ...] = ("start-up", "no-grad forward", "between steps")
"""Phases that are excluded from figures per step."""
IN_STEPS = ~pl.col("phase").is_in(OUTSIDE_STEPS)
"""Mask of the rows, in a table with a column ``phase``, that figures per step count."""

NO_AXIS = "no mesh"
"""Shown in place of an axis for groups that are not an axis of a mesh."""

Timing = Literal["none", "host", "work", "cuda"]
"""How start and end were measured. ``none``: a simulation, start and end are null; ``host``: the host clock
around the call; ``work``: from issue to the completion of the work; ``cuda``: CUDA events on the stream."""

State = Literal["", "scheduled", "started", "completed", "failed"]
"""How far a collective got. ``""``: a simulation, where nothing runs; ``scheduled``: issued, start and end unknown;
``started``: running on the device; ``failed``: raised. Only a completed one has a duration."""
STATES: tuple[State, ...] = get_args(State)

EVENTS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),  # the rank that recorded the event
    "step": pl.Int32(),  # from 0; each trace.step() begins the next one
    "seq": pl.Int64(),  # position in this rank's program order, from 0
    "op": pl.String(),  # all_reduce, all_gather, …; "unknown:<name>", "switched_off:<op>"
    "raw_op": pl.String(),  # the dispatcher's name, such as c10d::allreduce_
    "phase": pl.String(),  # see Phase; start-up is what is sent before the first step
    "trigger": pl.String(),  # module that was running; "" outside any
    "owner": pl.String(),  # module whose parameters move; the trigger where nothing else is known
    "axis": pl.String(),  # mesh axis of the group, or of what `capture.collectives.plain_groups` knows; "" for none
    "group": pl.String(),  # process group's name, key into the groups table
    "group_size": pl.Int32(),
    "message_bytes": pl.Int64(),  # S, as nccl-tests counts it: the whole buffer; null: unknown
    "wire_bytes": pl.Int64(),  # the least that one rank must send; 0 for a recv; null if size or group is unknown
    "dtype": pl.String(),  # torch's name without "torch."; "" where no tensor is sent
    "shape": pl.List(pl.Int64()),  # shape of the tensor that message_bytes counts; see collectives.py
    "implicit": pl.Boolean(),  # a DTensor redistribute that the program did not ask for
    "cause": pl.String(),  # DTensor op or redistribute with placements "S(0)→R", FSDP's reason, …; "" unknown
    "source": pl.String(),  # "file:line" of the user's frames, innermost first, joined by " ← "; in backward the first
    # one is the line of the forward that called the trigger
    "is_async": pl.Boolean(),
    "is_object": pl.Boolean(),  # part of an object collective (all_gather_object and friends)
    "batch": pl.Int64(),  # members of one coalesced call share it; null outside one
    "peer": pl.Int32(),  # send, recv: the rank at the other end; null elsewhere, and for a recv from any rank
    "root": pl.Int32(),  # broadcast, reduce, gather, scatter: the rank that has the whole; null elsewhere
    "send_splits": pl.List(pl.Int64()),  # uneven all_to_all: elements for each rank of the group; null where even
    "recv_splits": pl.List(pl.Int64()),  # uneven all_to_all: elements from each rank of the group; null where even
    "start": pl.Int64(),  # ns since the Unix epoch; null where timing is "none"
    "end": pl.Int64(),
    "state": pl.String(),  # see State; null in files of formats 1 and 2
    "waited": pl.Int64(),  # ns for which the program waited in wait(); in an imported profile, ns in which its GPU
    # computed nothing; null if unknown
    "group_seq": pl.Int64(),  # number of the collective among those of its group, as the recorder counted them; null
    # for messages, and in imported files without such numbers
    "same_input": pl.Boolean(),  # redistribute: whether the trigger was called with the same tensor as that of the
    # redistribute just before it in its group; null if unknown
}

ADDED: dict[int, tuple[str, ...]] = {
    2: ("peer", "root", "send_splits", "recv_splits"),
    3: ("state",),
    4: ("waited",),
    5: ("group_seq",),
    8: ("same_input",),
}
"""{format version: columns of the events that files of earlier versions lack}."""

RECV_SENDS_NOTHING = 6
"""Format version from which a recv has no wire bytes; before, it had those of the matching send."""

UNKNOWN_IS_NULL = 8
"""Format version from which bytes that an imported file does not say are null; before, they were 0."""

PARAMETERS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "module": pl.String(),  # key into the modules table
    "name": pl.String(),  # module + "." + the parameter's own name
    "global_shape": pl.List(pl.Int64()),
    "local_shape": pl.List(pl.Int64()),
    "dtype": pl.String(),
    "placements": pl.String(),  # "S(0), R", one per axis of mesh; "" for a plain tensor
    "mesh": pl.String(),  # "dp=2,tp=4"; "" for a plain tensor
    "global_bytes": pl.Int64(),
    "local_bytes": pl.Int64(),
    "requires_grad": pl.Boolean(),
    "shared_with": pl.String(),  # name of the first parameter that is the same tensor; "" for that first one
}

MODULES: dict[str, pl.DataType] = {
    "module": pl.String(),  # "Llama.layers.0.attn": class of the root, then the fully qualified name
    "parent": pl.String(),  # "" for a root
    "type": pl.String(),
    "depth": pl.Int32(),  # 0 for a root
    "calls": pl.Int64(),  # forward calls while recording, recomputed ones included
}

GROUPS: dict[str, pl.DataType] = {
    "group": pl.String(),
    "axis": pl.String(),
    "mesh": pl.String(),  # "dp=2,tp=4"
    "ranks": pl.List(pl.Int32()),
    "size": pl.Int32(),
    "backend": pl.String(),  # fake, gloo, nccl, …
    "timing": pl.String(),  # see Timing
}

KERNELS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "before": pl.Int64(),  # seq of the event that was issued next
    "segment": pl.Int32(),  # position in program order: kernels of one segment stand between the same two waits
    "phase": pl.String(),
    "module": pl.String(),  # module that was running; "" outside any
    "kind": pl.String(),  # matmul, attention, memory, dispatch (ops on DTensors, on the CPU alone), wait
    "op": pl.String(),  # aten's name
    "dtype": pl.String(),
    "shape": pl.List(pl.Int64()),  # matmul: batch, m, n, k; attention: batch, heads, queries, keys, head width
    "count": pl.Int64(),  # how many such ops
    "flops": pl.Int64(),  # of these ops together; read_bytes and written_bytes likewise
    "read_bytes": pl.Int64(),
    "written_bytes": pl.Int64(),
    "fused_bytes": pl.Int64(),  # memory: bytes that a compiler's fused kernels would read and write instead
    "fused_count": pl.Int64(),  # memory: number of those kernels
    "compiled": pl.Boolean(),  # whether torch.compile was asked to compile the module, which ran eagerly here
    "waits_for": pl.Int64(),  # wait: seq of the event that the compute stream waits for; null elsewhere
}
"""One row per kind of op between two consecutive collectives, if costs were recorded; otherwise empty."""

MEMORY: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "before": pl.Int64(),
    "segment": pl.Int32(),
    "phase": pl.String(),
    "module": pl.String(),
    "parameters": pl.Int64(),  # bytes, at the moment of the segment when all uses together were largest
    "gradients": pl.Int64(),
    "optimizer": pl.Int64(),
    "activations": pl.Int64(),
    "buffers": pl.Int64(),  # gathered parameters, and what collectives read and write
    "inputs": pl.Int64(),  # tensors older than the recording that are not a model's, such as a batch; 0 in older files
}
"""One row per segment if costs were recorded; otherwise empty."""

NUMERICS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "seq": pl.Int64(),  # position among this rank's summaries, in program order
    "phase": pl.String(),  # forward, no-grad forward: an output; backward: the gradient of an output; gradient: the
    # gradient of a parameter, as the optimizer reads it
    "module": pl.String(),
    "name": pl.String(),  # output, or output 1 and so on; of a parameter's gradient the parameter's own name
    "call": pl.Int32(),  # number of the module's call in this step
    "dtype": pl.String(),
    "placements": pl.String(),  # placements of a DTensor; "" for a plain tensor
    "count": pl.Int64(),  # elements of this rank's part; the columns below summarize these
    "norm": pl.Float64(),
    "mean": pl.Float64(),
    "min": pl.Float64(),  # NaN if an element is
    "max": pl.Float64(),
    "projection": pl.Float64(),  # dot product with a seeded random vector: depends on the order of the elements
    "hash": pl.Int64(),  # sum of the elements' bits as whole numbers, modulo 2**32: does not depend on their order
}
"""One row per summary of a tensor, if ``numerics=True`` recorded some; otherwise empty."""

DIFFERING: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "kind": pl.String(),  # activation, gradient, parameter; see `capture.values.differing_values`
    "phase": pl.String(),
    "module": pl.String(),  # module that runs, or that holds the parameter; "" outside any
    "name": pl.String(),  # the parameter's own name; of an activation the op that reads it
    "axis": pl.String(),  # mesh axis along which the ranks should hold the same values
}
"""One row per tensor that differs between ranks that should hold the same, if costs were recorded; otherwise empty."""

IO: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "seq": pl.Int64(),  # position among this rank's rows, in the order in which they began
    "op": pl.String(),  # read, write: transfers of dsexplore.aio; wait: the program waits for these; input: for a batch
    "path": pl.String(),  # the file; for input the class of the data set; "" for a wait for several files
    "bytes": pl.Int64(),  # null for wait and input
    "phase": pl.String(),  # phase in which it began
    "module": pl.String(),  # module that was running when it began; "" outside any
    "source": pl.String(),  # the user's lines, as in EVENTS
    "start": pl.Int64(),  # ns since the Unix epoch
    "end": pl.Int64(),  # null where it had not ended when the recording did
}
"""One row per transfer of `dsexplore.aio` while a program on real ranks is recorded, and per time that the program
waited for transfers or for the next batch of a ``DataLoader``."""

TABLES: dict[str, dict[str, pl.DataType]] = {
    "events": EVENTS,
    "parameters": PARAMETERS,
    "modules": MODULES,
    "groups": GROUPS,
    "kernels": KERNELS,
    "memory": MEMORY,
    "numerics": NUMERICS,
    "differing": DIFFERING,
    "io": IO,
}
ADDED_TABLES: dict[str, int] = {"kernels": 3, "memory": 3, "numerics": 7, "differing": 7, "io": 8}
"""{table: format version that added it}."""


IMPORTED_EVENT: dict[str, object] = {
    **dict.fromkeys(("trigger", "owner", "cause", "source"), ""),
    "step": 0,
    "phase": "other",
    "implicit": False,
    "is_async": True,
    "is_object": False,
}
"""Values of an event of another tool's file in columns that are never null; the file may tell others."""


def empty(table: str) -> pl.DataFrame:
    """Return an empty frame with the columns of that table."""
    return pl.DataFrame(schema=TABLES[table])


def events_of(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return the table of events with these rows; a column that a row lacks is null."""
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in EVENTS}, schema=EVENTS)
