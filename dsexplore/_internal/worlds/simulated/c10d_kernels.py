"""Kernels of the c10d ops in a simulated world, where nothing is sent and no other rank runs.

Every collective and every message reaches one of these kernels instead of its process group, whether Python, DDP's
reducer in C++, a functional collective, DTensor or compiled code calls it. A kernel

* raises the error that the backend of the group would raise (`refusals`);
* writes its outputs: this rank's part in place of the parts that other ranks would send, and zeros if only another
  rank sends; a reduction returns this rank's input;
* marks tensors that other ranks would fill, so that a read of them is reported (`received_values`);
* returns a work whose future holds the outputs, like those of NCCL and gloo: DDP's reducer and communication hooks
  read their results there.

Like a backend, a kernel treats tensors as memory: shapes need not match. Tensors without memory, meta or fake, are not
written. torch's own backend "fake" is not used, because its behavior changes with the version of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dsexplore._internal.torch_internals.dispatch import find_op, schema_of
from dsexplore._internal.torch_internals.patches import Entry, Kernel, Parts
from dsexplore._internal.torch_internals.process_groups import completed_future, finished_work, work_of
from dsexplore._internal.torch_internals.tensors import no_torch_function
from dsexplore._internal.worlds.simulated.closed import WorldObjects
from dsexplore._internal.worlds.simulated.received_values import TensorsFromPeers
from dsexplore._internal.worlds.simulated.refusals import check_call
from dsexplore._internal.worlds.simulated.set_up_calls import SetUpCalls

Tensors = Sequence[torch.Tensor]
Lists = Sequence[Tensors]
_WHY = "its process group would wait for other ranks"
_META = "Meta"


@dataclass(frozen=True)
class C10dCall:
    """One call of an op of c10d.

    Attributes:
        op: name of the op, ``"allreduce_"``.
        group: process group of the call.
        size: number of ranks of the group.
        rank: rank of this process in the group.
        arguments: arguments by name, without those that have their default.
        outputs: tensors that the op writes: a tensor, a list of tensors, or a list of lists.
    """

    op: str
    group: dist.ProcessGroup
    size: int
    rank: int
    arguments: dict[str, Any]
    outputs: Any

    @property
    def is_root(self) -> bool:
        """False if another rank is the only sender or the only receiver."""
        return bool(self.arguments.get("root_rank", self.rank) == self.rank)

    @property
    def is_async(self) -> bool:
        """True if the caller may ask the work for its future."""
        return bool(self.arguments.get("async_op", True)) and "tag" not in self.arguments


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy elements from one tensor to another of any shape; set the remaining ones to 0."""
    if target.shape != source.shape:
        elements = source.reshape(-1)[: target.numel()]
        source = nn.functional.pad(elements, (0, target.numel() - elements.numel())).view(target.shape)
    target.copy_(source)


def _keep(_call: C10dCall) -> None:
    """Write nothing: a reduction, or a broadcast from this rank, leaves the tensor unchanged."""


def _receive(call: C10dCall) -> None:
    for tensor in call.outputs:
        tensor.zero_()  # new memory may hold NaN, which ends scripts that check their loss


def _gather_list(outputs: Tensors, part: torch.Tensor, call: C10dCall) -> None:
    """Write this rank's part to each tensor of a list; fill tensors of another size with its first element."""
    sent = part.detach().clone()  # the list may hold the part itself
    for rank, output in enumerate(outputs):
        if rank == call.rank or output.numel() == sent.numel():
            _copy(output, sent)
        else:
            output.fill_(sent.view(-1)[0] if sent.numel() else 0)


def _gather_lists(call: C10dCall) -> None:
    for outputs, part in zip(call.outputs, call.arguments["input_tensors"], strict=True):
        if len(outputs) != call.size:
            raise RuntimeError(f"all_gather: the list has {len(outputs)} tensors, and the group {call.size} ranks")
        _gather_list(outputs, part, call)


def _gather_to_root(call: C10dCall) -> None:
    if call.is_root:
        _gather_lists(call)


def _gather_flat(output: torch.Tensor, part: torch.Tensor, call: C10dCall) -> None:
    if output.numel() != part.numel() * call.size:
        raise ValueError("output tensor size must be equal to world_size times input tensor size")
    output.copy_(part.reshape(-1).expand(call.size, -1).reshape(output.shape))


def _gather_tensor(call: C10dCall) -> None:
    if call.is_root:
        _gather_flat(call.outputs, call.arguments["input_tensor"], call)


def _gather_tensors(call: C10dCall) -> None:
    for output, part in zip(call.outputs, call.arguments["inputs"], strict=True):
        _gather_flat(output, part, call)


def _gather_coalesced(call: C10dCall) -> None:
    for outputs in call.outputs:
        for output, part in zip(outputs, call.arguments["input_list"], strict=True):
            _copy(output, part)


def _scatter_list(call: C10dCall) -> None:
    for output, parts in zip(call.outputs, call.arguments["input_tensors"], strict=False):
        _copy(output, parts[call.rank])


def _scatter_from_root(call: C10dCall) -> None:
    if call.is_root:
        _scatter_list(call)
    else:
        _receive(call)


def _scatter_flat(output: torch.Tensor, whole: torch.Tensor, call: C10dCall) -> None:
    if whole.numel() != output.numel() * call.size:
        raise ValueError("input tensor must be the same size as output size times world size")
    _copy(output, whole.reshape(call.size, -1)[call.rank])


def _scatter_tensor(call: C10dCall) -> None:
    _scatter_flat(call.outputs, call.arguments["input_tensor"], call)


def _scatter_tensors(call: C10dCall) -> None:
    for output, whole in zip(call.outputs, call.arguments["inputs"], strict=True):
        _scatter_flat(output, whole, call)


def _exchange_list(call: C10dCall) -> None:
    for output, part in zip(call.outputs, call.arguments["input_tensors"], strict=True):
        _copy(output, part)


def _exchange_tensor(call: C10dCall) -> None:
    _copy(call.outputs, call.arguments["input"])


Mark = Callable[[TensorsFromPeers, Any], None]


@dataclass(frozen=True)
class _Rule:
    """Behavior of an op.

    Attributes:
        write: function that writes the outputs.
        mark: method that marks outputs to which other ranks contribute; None if they never do.
        root_sends: true if the outputs are the root's own data on the root.
    """

    write: Callable[[C10dCall], None]
    mark: Mark | None = None
    root_sends: bool = False


_received, _reduced = TensorsFromPeers.add_received, TensorsFromPeers.add_reduced
_RULES: dict[str, _Rule] = {
    "allreduce_": _Rule(_keep, _reduced),
    "allreduce_coalesced_": _Rule(_keep, _reduced),
    "reduce_": _Rule(_keep, _reduced),
    "reduce_scatter_": _Rule(_scatter_list, _reduced),
    "_reduce_scatter_base_": _Rule(_scatter_tensor, _reduced),
    "reduce_scatter_tensor_coalesced_": _Rule(_scatter_tensors, _reduced),
    "broadcast_": _Rule(_keep, _received, root_sends=True),
    "allgather_": _Rule(_gather_lists, _received),
    "_allgather_base_": _Rule(_gather_tensor, _received),
    "allgather_coalesced_": _Rule(_gather_coalesced, _received),
    "allgather_into_tensor_coalesced_": _Rule(_gather_tensors, _received),
    "gather_": _Rule(_gather_to_root, _received),
    "gather_into_tensor_": _Rule(_gather_tensor, _received),
    "scatter_": _Rule(_scatter_from_root, _received, root_sends=True),
    "alltoall_": _Rule(_exchange_list, _received),
    "alltoall_base_": _Rule(_exchange_tensor, _received),
    "recv_": _Rule(_receive, _received),
    "recv_any_source_": _Rule(_receive, _received),
    "send": _Rule(_keep),
    "barrier": _Rule(_keep),
}
_SPARSE = ("SparseCPU", "SparseCUDA")
_KEYS = {"allreduce_": ("CPU", "CUDA", _META, *_SPARSE)}


def _kernel(op: str, rule: _Rule, key: str, parts: Parts) -> Callable[..., Any]:
    """Return the kernel of an op for tensors of one dispatch key."""
    schema = schema_of(find_op(f"c10d::{op}").default)
    names = [argument.name for argument in schema.arguments]
    returns_outputs = len(schema.returns) == 2
    objects, received, set_up = parts[WorldObjects], parts[TensorsFromPeers], parts[SetUpCalls]
    has_memory = key != _META

    def kernel(*args: Any) -> Any:
        arguments = dict(zip(names, args, strict=False))
        group = _unboxed(arguments["process_group"])
        objects.check_group(group)
        call = C10dCall(op, group, size=group.size(), rank=group.rank(), arguments=arguments, outputs=args[0])
        with torch.no_grad(), no_torch_function():
            check_call(set_up.backend_of(group), op, arguments, call.size)
            if has_memory:
                rule.write(call)
        if rule.mark is not None and call.size > 1 and call.is_root != rule.root_sends:
            rule.mark(received, call.outputs)
        work = _work(call).boxed()
        return (args[0], work) if returns_outputs else work

    return kernel


def _unboxed(group: Any) -> dist.ProcessGroup:
    """Return the process group in a dispatcher's argument."""
    script_object = getattr(group, "real_obj", group) if not isinstance(group, torch.ScriptObject) else group
    unboxed: dist.ProcessGroup = dist.ProcessGroup.unbox(script_object)
    return unboxed


def _work(call: C10dCall) -> Any:
    """Return a completed work; if the op is async, its future holds the outputs."""
    outputs = [call.outputs] if isinstance(call.outputs, torch.Tensor) else call.outputs
    return work_of(completed_future(lambda: outputs)) if call.is_async and outputs else finished_work()


PATCHES: tuple[Entry, ...] = tuple(
    Kernel(f"c10d::{op}", key, _WHY, partial(_kernel, op, rule, key))
    for op, rule in _RULES.items()
    for key in _KEYS.get(op, ("CPU", "CUDA", _META))
)
