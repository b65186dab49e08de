"""Which tensors differ between ranks that should hold the same: found by where values come from, without the values.

Each tensor gets the groups of ranks among which its values may differ. They differ among the ranks of a mesh axis where
a DTensor is sharded or Partial over it, and after a forward has scattered a sum; what is computed of such tensors
differs, too; all_reduce, all_gather and broadcast over the axis make it the same again. What a rank reads as its own
batch, and plain parameters that each rank has cut for itself, are not known to differ: nothing is said of them.

Worked example: under sequence parallelism ``x`` is DTensor ``S(1)`` over tp, and ``x.to_local()`` goes into a norm with
plain parameters. The gradient of the norm's weight is computed of ``x``, so it differs over tp; the weight is plain, so
each rank holds it whole; if no all_reduce over tp comes before the optimizer, the ranks update it differently.

Where a flat buffer joins gradients, as buckets do, only groups among which all of them differ are kept. What is written
through a view is not seen in what it is a view of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.kernels.op_costs import COMMUNICATION, AtenOp
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.torch_internals.dtensor import local_tensor

Group = frozenset[int]
"""Global ranks among which a value may differ."""
Differs = frozenset[Group]
NOWHERE: Differs = frozenset()
Holder = Callable[[Tensor], tuple[ModuleEntry, str] | None]
"""Returns the module that holds a parameter, and its name there."""
Kind = Literal["activation", "gradient", "parameter"]
"""``activation``: a DTensor says that ranks hold the same, and they do not; ``gradient``: of a parameter that ranks
hold alike, read by the optimizer before it is reduced; ``parameter``: such a parameter was updated differently."""

_JOINING = {"cat", "chunk_cat", "_chunk_cat", "all_gather_copy_in", "split_with_sizes_copy"}
"""Ops that fill flat buffers of many parameters' gradients."""
_REPLACING = {"copy_", "zero_", "fill_"}
"""Ops after which nothing is left of what they write into."""


@dataclass(frozen=True)
class Differing:
    """One tensor that differs between ranks that should hold equal values."""

    kind: Kind
    phase: str
    module: ModuleEntry | None
    name: str
    """The parameter's own name; of an activation the op that reads it."""
    axis: str
    step: int


class DifferingValues:
    """Follows values through a program's ops."""

    def __init__(self) -> None:
        self.found: list[Differing] = []
        self._differs: dict[int, tuple[weakref.ref[Tensor], Differs]] = {}
        self._groups: dict[tuple[int, int], Group] = {}
        self._axes: dict[Group, str] = {}
        self._said: set[tuple[int, str, Group]] = set()

    def release(self) -> None:
        """Drop all references to tensors."""
        self._differs.clear()
        self._groups.clear()

    def of(self, tensor: Tensor) -> Differs:
        """Return the groups with ranks that may hold different values of a tensor."""
        reference, differs = self._differs.get(id(tensor), (None, NOWHERE))
        return differs if reference is not None and reference() is tensor else NOWHERE

    def met(self, values: Iterable[Any], where: tuple[str, ModuleEntry | None], op: str, step: int) -> None:
        """Read the placements of the DTensors among the arguments of an op, and check those that say ``Replicate``."""
        for tensor in tensors_in(values):
            if not isinstance(tensor, DTensor):
                continue
            local = local_tensor(tensor)
            differs = self.of(local)
            groups = self._mesh_groups(tensor.device_mesh)
            placed = frozenset(
                group
                for placement, group in zip(tensor.placements, groups, strict=True)
                if not placement.is_replicate() and len(group) > 1
            )
            if where[0] == "optimizer":  # what it reads and makes is checked as a whole
                self._set(local, differs | placed)
                continue
            for group in (differs - placed).intersection(groups):
                difference = Differing(
                    kind="activation",
                    phase=where[0],
                    module=where[1],
                    name=op,
                    axis=self._axes.get(group, ""),
                    step=step,
                )
                self._say(difference, id(where[1]), group)
            self._set(local, placed)

    def follow(
        self,
        op: AtenOp,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        given: Sequence[Tensor],
        returned: Sequence[Tensor],
        issued: Sequence[Issued],
        *,
        is_forward: bool,
    ) -> None:
        """Follow the values through an op on plain tensors.

        Args:
            op: the op.
            args: its arguments.
            kwargs: those that were given by name.
            result: what it returned.
            given: the tensors among the arguments.
            returned: the tensors in the result.
            issued: the collectives so far; the last one is that of a collective op.
            is_forward: whether it ran in a forward.
        """
        if op.role == COMMUNICATION:
            if issued:
                self._communicated(issued[-1], given, returned, is_forward=is_forward)
        elif not self._differs:
            return
        elif op.name.startswith(("_foreach", "_fused")):
            self._ran_on_lists(op, [*args, *kwargs.values()], result)
        else:
            written = _written(op, args, kwargs)
            replaces = op.name in _REPLACING or "out" in kwargs
            read = [tensor for tensor in given if not (replaces and _is_among(tensor, written))]
            self._ran(op, read, [*written, *returned], is_forward=is_forward)

    def _ran(self, op: AtenOp, read: Sequence[Tensor], written: Sequence[Tensor], *, is_forward: bool) -> None:
        """Follow the values from the tensors that an op reads to those that it writes and returns."""
        all_of = [self.of(tensor) for tensor in read]
        if op.name in _JOINING and not is_forward:
            differs = frozenset.intersection(*all_of) if all_of else NOWHERE
        else:
            differs = NOWHERE.union(*all_of)
        for tensor in written:
            self._set(tensor, differs)

    def _communicated(
        self, collective: Issued, given: Sequence[Tensor], returned: Sequence[Tensor], *, is_forward: bool
    ) -> None:
        """Follow the values through a collective."""
        group = frozenset(collective.group.ranks) if collective.group is not None else frozenset[int]()
        op = collective.messages[0][0] if collective.messages else ""
        targets = list(returned) or list(given[:1])
        sources = [tensor for tensor in given if not _is_among(tensor, targets)] or targets
        differs = NOWHERE.union(*(self.of(tensor) for tensor in sources))
        if collective.group is not None:
            self._axes.setdefault(group, collective.group.axis or collective.group.met_axis)
        if group and op not in ("send", "recv", "barrier"):
            differs = frozenset(among for among in differs if not among <= group)
        if op == "reduce_scatter" and is_forward and len(group) > 1:
            differs |= {group}
        for tensor in targets:
            self._set(tensor, differs)

    def check_gradients(self, optimizer: Optimizer, holder: Holder, step: int) -> None:
        """Check what an optimizer is about to read."""
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                self._check("gradient", parameter, parameter.grad, holder, step)

    def check_parameters(self, optimizer: Optimizer, holder: Holder, step: int) -> None:
        """Check what an optimizer has made of the parameters."""
        for parameter in _parameters(optimizer):
            self._check("parameter", parameter, parameter, holder, step)

    def _check(self, kind: Kind, parameter: Tensor, value: Tensor, holder: Holder, step: int) -> None:
        differs = self.of(local_tensor(value) if isinstance(value, DTensor) else value)
        for group in differs - self._held_apart(parameter) - self._held_apart(value):
            holding = holder(parameter)
            if holding is not None:
                self._say(Differing(kind, "optimizer", *holding, self._axes.get(group, ""), step), id(parameter), group)

    def _held_apart(self, tensor: Tensor) -> Differs:
        """Return the groups over which a DTensor is sharded or Partial."""
        if not isinstance(tensor, DTensor):
            return NOWHERE
        groups = zip(tensor.placements, self._mesh_groups(tensor.device_mesh), strict=True)
        return frozenset(group for placement, group in groups if not placement.is_replicate())

    def _ran_on_lists(self, op: AtenOp, given: Sequence[Any], result: Any) -> None:
        """Follow the values through an op on lists of tensors, element by element."""
        lists = [value for value in given if isinstance(value, (list, tuple)) and value]
        count = len(lists[0]) if lists else 0
        elementwise = [tensors for tensors in lists if len(tensors) == count]
        common = [self.of(value) for value in given if isinstance(value, Tensor)]
        targets = elementwise if op.name.startswith("_fused") else elementwise[:1] if op.writes else [result]
        read = elementwise[1:] if op.name == "_foreach_copy_" else elementwise
        for at in range(count):
            parts = [self.of(tensors[at]) for tensors in read if isinstance(tensors[at], Tensor)]
            differs = NOWHERE.union(*parts, *common)
            for target in targets:
                self._set(target[at], differs)

    def _set(self, tensor: Tensor, differs: Differs) -> None:
        key = id(tensor)
        if differs:
            reference = weakref.ref(tensor, lambda _gone: self._differs.pop(key, None))
            self._differs[key] = reference, differs
        elif self._differs:
            self._differs.pop(key, None)

    def _mesh_groups(self, mesh: DeviceMesh) -> list[Group]:
        """Return this rank's group along each axis of a mesh."""
        return [self._group(mesh, dim) for dim in range(mesh.ndim)]

    def _group(self, mesh: DeviceMesh, dim: int) -> Group:
        key = id(mesh), dim
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = frozenset(dist.get_process_group_ranks(mesh.get_group(dim)))
            self._axes[group] = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else f"dim {dim}"
        return group

    def _say(self, difference: Differing, about: int, group: Group) -> None:
        key = about, difference.phase, group  # an update that differs follows from a gradient that does
        if key not in self._said:
            self._said.add(key)
            self.found.append(difference)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_among(tensor: Tensor, tensors: Iterable[Tensor]) -> bool:
    return any(tensor is other for other in tensors)


def _written(op: AtenOp, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors among its arguments that an op writes."""
    if not op.writes:
        return []
    values = [
        kwargs.get(argument.name, args[at] if at < len(args) else None)
        for at, argument in enumerate(op.parameters)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return list(tensors_in(values))
